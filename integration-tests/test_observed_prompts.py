"""On CUDA, emulated, a prompt's chunks keep what MLX operations keep, and ask for the launches named here."""

from collections import Counter
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import vqx_kernels
from vqx import EvictingCache, Options, kernels
from vqx.state.turn import Turn
from vqx.testing import Shape, cache_of, stream
from vqx_kernels import testing

LAYERS, CHUNK = 2, 40
METHODS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("streaming-llm", {}, {}),
    ("h2o", {}, {"bars": 6, "weighed": 6, "h2o_seen_summed": 6}),
    ("h2o", {"decay": 0.97, "normalise": None}, {"bars": 6, "weighed": 6, "h2o_mass_summed": 6}),
    ("keyformer", {}, {"bars": 6, "weighed": 6, "keyformer_rank_summed": 6}),
    ("keyformer", {"noise": "logit"}, {"bars": 6, "weighed": 6}),
    ("snapkv", {"window": 8}, {"bars_2": 2, "weighed_2": 2}),
    ("chunkkv", {"window": 8, "chunk": 3}, {"bars_2": 2, "weighed_2": 2}),
    ("morphkv", {"window": 8}, {"bars_2": 2, "weighed_2": 2}),
]


@pytest.mark.parametrize(("method", "options", "asked"), METHODS)
def test_a_prompts_chunks_keep_what_mlx_operations_keep(
    method: str, options: dict[str, Any], asked: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``asked``: launches of two layers that observe, in three chunks, or that score at two cuts."""
    monkeypatch.setattr(vqx_kernels.tensor, "_tried", lambda _: (True, ""))
    text = [stream("gaussian", number, Shape(3 * CHUNK)).astype(mx.float16) for number in range(LAYERS)]
    found, names = [], Counter[str]()
    for target in ("reference", "cuda"):
        monkeypatch.setattr(kernels, "target", partial(str, target))
        caches = _caches(method, **options)
        with testing.recorded() as launches:
            for first in range(0, 3 * CHUNK, CHUNK):
                caches[0].make_mask(CHUNK)
                for cache, tokens in zip(caches, text, strict=True):
                    part = tokens.cut(first, first + CHUNK)
                    keys, _ = cache.update_and_fetch(part.keys, part.values)
                    cache.observe(part.queries, keys, 0.25, "causal", None)
                mx.eval([cache.state for cache in caches])
            found.append([_kept(cache) for cache in caches])
        names = Counter(one.name.split("vqx_")[1].rpartition("_")[0] for _, one in launches)
        assert (not names) == (target == "reference")
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_allclose(one[1], other[1], rtol=1e-4)
    assert names.pop(f"nans_{LAYERS}") == 3  # one a forward
    settling = ("survivors", "gathered", "picked")
    observing = {name: number for name, number in names.items() if not any(n in name for n in settling)}
    assert observing == asked
    assert sum(number for name, number in names.items() if "survivors" in name) == 2  # one a cut


@pytest.mark.parametrize("bad", range(LAYERS))
def test_nan_keys_are_found_in_one_launch_and_refused(bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last number of the last row that a prompt's forward brought, of one layer."""
    monkeypatch.setattr(kernels, "target", lambda: "cuda")
    tokens = stream("gaussian", 0, Shape(2 * CHUNK)).astype(mx.bfloat16)
    caches = _caches("streaming-llm")
    with testing.recorded() as launches:
        for first, spoilt in ((0, -1), (CHUNK, bad)):
            caches[0].make_mask(CHUNK)
            for number, cache in enumerate(caches):
                part = tokens.cut(first, first + CHUNK)
                lift = mx.zeros(part.keys.shape, mx.bfloat16)
                lift[-1, -1, -1, -1] = mx.nan if number == spoilt else 0
                cache.update_and_fetch(part.keys + lift, part.values)
            mx.eval([cache.state for cache in caches])
        caches[0].make_mask(CHUNK)
        with pytest.raises(ValueError, match=f"layer {bad}: keys of the last {CHUNK} tokens hold NaN"):
            caches[0].update_and_fetch(tokens.keys, tokens.values)
    assert [f"nans_{LAYERS}" in one.name for _, one in launches].count(True) == 2


def _caches(method: str, **options: Any) -> list[EvictingCache]:
    engine, turn = Options(queries="model"), Turn()
    shared = cache_of(method, engine, budget=24, **options).plan.method
    caches = [EvictingCache(shared, engine) for _ in range(LAYERS)]
    for number, cache in enumerate(caches):
        cache.number, cache.turn = number, turn
        turn.join(cache)
    return caches


def _kept(cache: EvictingCache) -> tuple[Any, Any]:
    layer = cache.layer
    assert layer is not None
    return np.array(layer.rows.position), np.array([*layer.rows.columns.values()])
