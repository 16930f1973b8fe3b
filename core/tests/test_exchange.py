"""The compiled step against the step as it is: the same rows, statistics and answers, in place."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer, accumulated
from vqx.exchange import step_of
from vqx.rows import filled

LATEST = Scorer(score=lambda held: held.last.weights().mean(axis=2).mean(axis=2), window=4)
SCORERS = {
    "alike": Scorer(score=lambda held: 0.0),
    "window": LATEST,
    "mass": accumulated(decay=0.9, per_sighting=True),
}


def cache_of(scorer: Scorer, interval: int, *, compiled: bool) -> EvictingCache:
    method = Method(scorer, 16, n_sink=2, recent=3)
    cache = EvictingCache(method, Options(queries="model", interval=interval))
    if compiled:  # as on a GPU
        cache._compiled = cache.plan, step_of(cache.plan)
    return cache


@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_a_compiled_step_keeps_the_same_rows(
    scorer: Scorer, interval: int, stream: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    tokens, found = stream(60), []
    for compiled in (False, True):
        cache = cache_of(scorer, interval, compiled=compiled)
        for lengths in ([20, *[1] * 17], [1] * 12, [4, *[1] * 7]):  # a look at the cache, and a later turn
            for length in lengths:
                now = slice(cache.tokens_seen, cache.tokens_seen + length)
                queries, keys, values = (a[..., now, :] for a in tokens)
                read = cache.update_and_fetch(keys, values)
                cache.observe(queries, read[0], 0.25, None if length == 1 else "causal", None)
                mx.eval(*read)
            assert cache.layer is not None
        found.append((cache.layer.rows, cache._compiled))
    (plain, none), (fast, run) = found
    assert none is None or none[1] is None
    assert run is not None
    assert run[1] is not None, "the compiled step was given up"
    one, other = (np.argsort(np.array(rows.position), axis=2) for rows in (plain, fast))
    for a, b in zip(
        (plain.position, *plain.columns.values()), (fast.position, *fast.columns.values()), strict=True
    ):
        a, b = np.take_along_axis(np.array(a), one, 2), np.take_along_axis(np.array(b), other, 2)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    for a, b in zip(filled(plain), filled(fast), strict=True):
        a, b = (np.take_along_axis(np.array(x), o[..., None], 2) for x, o in ((a, one), (b, other)))
        assert np.array_equal(a, b)


def test_a_scorer_that_wants_pythons_numbers_is_run_as_it_is(feed: Callable[..., Any], stream: Any) -> None:
    asked = []

    def score(held: Any) -> Any:
        asked.append(range(held.newest)[-1])  # an array is no number
        return held.position

    cache = cache_of(Scorer(score=score), 1, compiled=True)
    feed(cache, stream(30), [18, *[1] * 6])
    assert cache._compiled == (cache.plan, None)
    assert asked[-1] == 21
    assert sorted(cache.position[0, 0].tolist()) == [0, 1, *range(9, 24)]


def test_a_compiled_step_writes_in_place() -> None:
    cache = EvictingCache(Method(SCORERS["alike"], 2048, n_sink=4), Options(queries="model"))
    cache._compiled = cache.plan, step_of(cache.plan)
    keys = mx.random.normal((1, 3, 2060, 64))
    for start, stop in ((0, 2048), *((at, at + 1) for at in range(2048, 2060))):
        new = mx.contiguous(keys[:, :, start:stop])
        mx.eval(new)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(cache.update_and_fetch(new, new))
        peak = mx.get_peak_memory() - before
    assert cache._compiled[1] is not None
    assert peak < keys.nbytes / 8, "the cache was copied"
