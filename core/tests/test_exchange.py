"""A token that rows go for, by kernels: the rows that MLX operations keep, whatever comes between."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer, accumulated, kernels
from vqx_kernels import probe

MASS = accumulated().with_kernel(probe.MASS, lambda *_: (1.0,))
LATEST = Scorer(score=lambda held: held.last.fused(), window=4)
SCORERS = {
    "lines of its own": MASS,
    "operations and statistics": accumulated(per_sighting=True),
    "a window": LATEST,
    "positions alone": Scorer(score=lambda held: held.position),
}


def read(cache: EvictingCache, tokens: Any, length: int) -> None:
    now = slice(cache.tokens_seen, cache.tokens_seen + length)
    queries, keys, values = (array[..., now, :] for array in tokens)
    mask = cache.make_mask(length)
    found = cache.update_and_fetch(keys, values)
    cache.observe(queries, found[0], 0.25, mask, None)
    mx.eval(*found, *cache.loose())


def kept(scorer: Scorer, interval: int, tokens: Any, between: Callable[..., Any]) -> list[Any]:
    """What a cache holds after 20 tokens, 30 alone, something else, and 12 alone."""
    cache = EvictingCache(Method(scorer, 16, n_sink=2, recent=3), Options(queries="model", interval=interval))
    for length in (20, *[1] * 30):
        read(cache, tokens, length)
    cache = between(cache, tokens) or cache
    for _ in range(12):
        read(cache, tokens, 1)
    layer = cache.layer
    assert layer is not None
    order = np.argsort(np.array(layer.rows.position), axis=2)
    keys = np.take_along_axis(np.array(layer.rows.keys[:, :, : layer.size]), order[..., None], 2)
    columns = layer.rows.position, *layer.rows.columns.values()
    return [keys, *(np.take_along_axis(np.array(column), order, 2) for column in columns)]


def looked_at(cache: EvictingCache, _: Any) -> None:
    assert cache.layer is not None
    mx.eval(cache.state)


def copied(cache: EvictingCache, _: Any) -> EvictingCache:
    import copy

    return copy.deepcopy(cache)


def undone(cache: EvictingCache, tokens: Any) -> None:
    before = cache.now()
    for _ in range(3):
        read(cache, tokens, 1)
    cache.go_back(before)


BETWEEN: dict[str, Callable[..., Any]] = {
    "nothing": lambda cache, tokens: None,
    "a look": looked_at,
    "a chunk": lambda cache, tokens: read(cache, tokens, 4),
    "a copy": copied,
    "tokens that are undone": undone,
    "keys that are tied": lambda cache, tokens: setattr(cache, "keys", cache.keys),
}


@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_kernels_keep_the_rows_that_operations_keep(
    scorer: Scorer, between: Callable[..., Any], interval: int, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, found = stream(120), []
    served: list[str] = []
    for name in ("step", "ranked", "exchange", "kept"):
        real = getattr(kernels, name)

        def seen(*given: Any, _real: Any = real, _name: str = name, **how: Any) -> Any:
            done = _real(*given, **how)
            served.extend([_name] * (done is not None))
            return done

        monkeypatch.setattr(kernels, name, seen)
    for target in ("reference", "host"):
        monkeypatch.setattr(kernels, "target", lambda target=target: target)
        found.append(kept(scorer, interval, tokens, between))
        assert bool(served) == (target == "host")
    own = "step" if interval == 1 else "ranked"
    assert served.count(own if scorer is MASS else "exchange" if interval == 1 else "kept") >= 7
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("interval", [1, 8])
def test_a_kernel_says_in_the_forward_before_what_goes(interval: int, stream: Any) -> None:
    """What a forward reads besides attention, MLX's CUDA does not write in place: so nothing is read then."""
    cache = EvictingCache(Method(MASS, 16, n_sink=2), Options(queries="model", interval=interval))
    tokens = stream(60)
    usual, kernels.target = kernels.target, lambda: "host"
    try:
        for length in (20, *[1] * 30):
            layer = cache._layer
            due = layer is not None and cache.plan.due(layer) and layer.evicted and layer.last == 1
            assert (layer is not None and layer.ahead is not None) == due
            read(cache, tokens, length)
    finally:
        kernels.target = usual
    assert cache.tokens_seen == 50
