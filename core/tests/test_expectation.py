"""Expected attention: the mean and covariance of all queries, the averaged turn, and the closed form."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope
from vqx import EvictingCache, Method, Options, expectation
from vqx.expectation import expected, expected_logits, gathered
from vqx.state.layer import Layer
from vqx.state.positions import rotary_of

D = 32
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
ROPES: dict[str, Callable[[], Any]] = {
    "plain": lambda: nn.RoPE(D),
    "interleaved": lambda: nn.RoPE(D, traditional=True),
    "partial": lambda: nn.RoPE(D // 4),
    "partial and interleaved": lambda: nn.RoPE(D // 4, traditional=True),
    "yarn": lambda: initialize_rope(D, 10000.0, False, YARN),
    "none": lambda: lambda x, offset: x,
}


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize(("start", "count"), [(0, 1), (7, 3), (5000, 512)])
def test_the_averaged_turn_is_the_mean_of_the_turns(name: str, start: int, count: int) -> None:
    rotary = rotary_of(ROPES[name](), D)
    x = mx.random.normal((1, 1, 1, D), key=mx.random.key(3))
    delta = mx.arange(start, start + count, dtype=mx.int32)[None, None]
    every = rotary.turn(mx.broadcast_to(x, (1, 1, count, D)), delta)
    found = x[0, 0] @ rotary.averaged(start, count)
    np.testing.assert_allclose(np.array(found), np.array(mx.mean(every, axis=2)[0]), atol=2e-5)


@pytest.mark.parametrize("cut", [[600], [1, 400, 1, 198], [1] * 600], ids=str)
def test_a_mean_far_from_zero_costs_the_covariance_no_digits(cut: list[int]) -> None:
    rng = np.random.default_rng(5)
    queries = rng.normal(1000, 1, size=(1, 2, 2, 600, 4)).astype(np.float32)
    notes: Any = {}
    start = 0
    for length in cut:
        notes = gathered(notes, mx.array(queries[..., start : start + length, :]), start)
        start += length
    wide = queries.astype(np.float64)
    apart = wide - wide.mean(axis=3, keepdims=True)
    np.testing.assert_allclose(np.array(notes["mean"]), wide.mean(axis=3), rtol=1e-6)
    right = apart.swapaxes(-1, -2) @ apart / 600
    np.testing.assert_allclose(np.array(notes["covariance"]), right, atol=2e-3)


def test_logits_are_the_log_of_the_mean_weight_of_many_queries() -> None:
    rng = np.random.default_rng(6)
    root = 0.3 * rng.normal(size=(4, 4))
    mean, keys = rng.normal(size=4), rng.normal(size=(5, 4))
    drawn = mean + rng.normal(size=(400_000, 4)) @ root
    right = np.log(np.exp(drawn @ keys.T).mean(axis=0))
    given = (keys[None, None], mean[None, None, None], (root.T @ root)[None, None, None])
    found = expected_logits(*(mx.array(array.astype(np.float32)) for array in given))
    np.testing.assert_allclose(np.array(found)[0, 0, 0], right, atol=0.02)


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, mean = mx.random.normal((2, 3, 50, 8)), mx.random.normal((2, 3, 2, 8))
    covariance = mx.random.normal((2, 3, 2, 8, 8))
    whole = expected_logits(keys, mean, covariance)
    monkeypatch.setattr(expectation, "TILE", 700)
    np.testing.assert_allclose(
        np.array(expected_logits(keys, mean, covariance)), np.array(whole), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("cut", [[30], [2, 1, 1, 26], [1] * 30], ids=str)
def test_notes_hold_the_queries_after_the_sinks_scaled_and_turned_back(cut: list[int], dtype: Any) -> None:
    layer = _run(cut, dtype=dtype)
    raw = np.array(RAW).reshape(1, 2, 2, 30, D)[..., 3:, :].astype(np.float64) * 0.25
    apart = raw - raw.mean(axis=3, keepdims=True)
    tolerance = 1e-5 if dtype == mx.float32 else 5e-3
    np.testing.assert_allclose(np.array(layer.notes["mean"]), raw.mean(axis=3), atol=tolerance)
    right = apart.swapaxes(-1, -2) @ apart / 27
    np.testing.assert_allclose(np.array(layer.notes["covariance"]), right, atol=tolerance)


def test_compact_places_are_taken_back_too() -> None:
    absolute, compact = (_run([12, 1, 12, *[1] * 5], positions=p) for p in ("absolute", "compact"))
    for name, note in absolute.notes.items():
        np.testing.assert_allclose(np.array(compact.notes[name]), np.array(note), atol=1e-5)


RAW = mx.random.normal((1, 4, 30, D), key=mx.random.key(9))


def _run(cut: list[int], dtype: mx.Dtype = mx.float32, positions: Any = "absolute") -> Layer:
    """Raw queries, rotated as a model would, through a cache of ten rows with three sinks."""
    rope = nn.RoPE(D)
    cache = EvictingCache(
        Method(expected(n_sink=3, future=8), budget=10, n_sink=3),
        Options(queries="model", positions=positions),
        rotary=rotary_of(rope, D),
    )
    keys = mx.random.normal((1, 2, 30, D), key=mx.random.key(10))
    for length in cut:
        now = slice(cache.tokens_seen, cache.tokens_seen + length)
        offset = cache.offset
        held, _ = cache.update_and_fetch(*[rope(keys[:, :, now], offset=offset).astype(dtype)] * 2)
        cache.observe(rope(RAW[:, :, now], offset=offset).astype(dtype), held, 0.25, "causal", None)
    assert cache.layer is not None
    return cache.layer
