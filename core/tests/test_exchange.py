"""The recorded step against the step as it is: the same rows, statistics and answers, in place."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer, accumulated
from vqx.state.exchange import tried
from vqx.state.rows import filled

LATEST = Scorer(score=lambda held: held.last.weights().mean(axis=2).mean(axis=2), window=4)
SCORERS = {
    "alike": Scorer(score=lambda held: 0.0),
    "window": LATEST,
    "mass": accumulated(decay=0.9, per_sighting=True),
}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VQX_RECORD", "on")


def cache_of(scorer: Scorer, interval: int = 1, *, recorded: bool = True) -> EvictingCache:
    method = Method(scorer, 16, n_sink=2, recent=3)
    cache = EvictingCache(method, Options(queries="model", interval=interval))
    if not recorded:
        cache._exchanged = lambda keys, values: None  # type: ignore[method-assign]
    return cache


@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_a_recorded_step_keeps_the_same_rows(
    scorer: Scorer, interval: int, stream: Callable[..., Any]
) -> None:
    tokens, found = stream(120), []
    for recorded in (False, True):
        cache = cache_of(scorer, interval, recorded=recorded)
        for lengths in ([20, *[1] * 40], [1] * 12, [4, *[1] * 40]):  # a look at the cache, and a later turn
            for length in lengths:
                now = slice(cache.tokens_seen, cache.tokens_seen + length)
                queries, keys, values = (a[..., now, :] for a in tokens)
                read = cache.update_and_fetch(keys, values)
                cache.observe(queries, read[0], 0.25, None if length == 1 else "causal", None)
                mx.eval(*read)
            assert cache.layer is not None
        found.append(cache.layer.rows)
    plain, fast = found
    assert cache._records
    assert cache._recorder is not None
    assert cache._recorder.recorded, "no step was recorded"
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

    cache = cache_of(Scorer(score=score))
    feed(cache, stream(30), [18, *[1] * 10])
    assert not cache._records
    assert asked[-1] == 25
    assert sorted(cache.position[0, 0].tolist()) == [0, 1, *range(13, 28)]


def test_nothing_is_recorded_unless_asked_for(
    feed: Callable[..., Any], stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VQX_RECORD")
    cache = cache_of(accumulated())
    feed(cache, stream(30), [18, *[1] * 10])
    assert not cache._records


def test_a_recorded_step_writes_in_place() -> None:
    cache = EvictingCache(Method(SCORERS["alike"], 2048, n_sink=4), Options(queries="model"))
    keys = mx.random.normal((1, 3, 2060, 64))
    for start, stop in ((0, 2048), *((at, at + 1) for at in range(2048, 2060))):
        new = mx.contiguous(keys[:, :, start:stop])
        mx.eval(new)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(cache.update_and_fetch(new, new))
        peak = mx.get_peak_memory() - before
    assert cache._recorder is not None
    assert cache._recorder.recorded
    assert peak < keys.nbytes / 8, "the cache was copied"


def test_a_disc_that_takes_no_file_costs_no_token(
    feed: Callable[..., Any], stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr("vqx.state.exchange.tempfile.TemporaryDirectory", full)
    cache = cache_of(accumulated())
    feed(cache, stream(30), [18, *[1] * 10])
    assert (cache.tokens_seen, cache.tokens_kept, cache._records) == (28, 16, False)


def test_a_device_is_tried_before_its_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried.__wrapped__("here")
    monkeypatch.setattr("vqx.state.exchange.mx.import_function", lambda file: lambda *arrays: [*arrays])
    assert not tried.__wrapped__("a device that gives back what it got")
