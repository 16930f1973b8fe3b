"""What a window of queries is for, on a stream without a model: ``bench/topic_shift.py`` draws it."""

from __future__ import annotations

from typing import Any

# before MLX: it shows MLX a fast BLAS
import vqx  # isort: split

import mlx.core as mx
import numpy as np
import pytest
from vqx import planted
from vqx.testing import Stream, forward, remaining
from vqx_morphkv import MorphKVConfig, morphkv_update_batched
from vqx_morphkv.method import morphkv

SEEDS, LENGTH, BUDGET, N_SINK, WINDOW = 64, 256, 32, 4, 8
MORPHKV = morphkv(MorphKVConfig(budget=BUDGET, n_sink=N_SINK, window=WINDOW), causal=True)
H2O = vqx.Method(vqx.accumulated(), BUDGET, N_SINK, WINDOW)
PLAIN_H2O = vqx.Method(vqx.accumulated(), BUDGET, N_SINK, 0)


@pytest.fixture(scope="module", params=[True, False], ids=["shift", "null control"])
def shift(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def stream(shift: bool) -> planted.Planted:
    return planted.topic_shift(SEEDS, LENGTH, shift=shift)


def kept(stream: planted.Planted, method: vqx.Method) -> Any:
    """Positions ``[seeds, budget]`` after the stream, with its true queries."""
    cache = vqx.EvictingCache(method, vqx.Options(queries="model", cadence="token"))
    keys = mx.array(stream.keys[:, None])
    forward(cache, Stream(mx.array(stream.queries[:, None]), keys, keys))
    positions = remaining(cache).position[:, 0]
    assert positions.shape == (SEEDS, BUDGET)  # of 256: rows were evicted
    return positions


def of_second_topic(stream: planted.Planted, positions: Any) -> float:
    """The share of the kept rows that the future reads."""
    return float(np.take_along_axis(stream.watched, positions.astype(np.int64), axis=1).mean())


def test_morphkv_holds_the_topic_read_last(stream: planted.Planted) -> None:
    # with a shift or without: half of the sinks and of the window are of the other topic, no other row is
    guarded = (N_SINK + WINDOW) / 2 / BUDGET
    assert of_second_topic(stream, kept(stream, MORPHKV)) > 1 - guarded - 0.02


@pytest.mark.parametrize("method", [H2O, PLAIN_H2O], ids=["same guards", "nothing recent"])
def test_accumulated_mass_holds_the_topic_read_longest(
    method: vqx.Method, stream: planted.Planted, shift: bool
) -> None:
    share = of_second_topic(stream, kept(stream, method))
    assert share < 0.4 if shift else share > 0.6


def test_only_a_shift_tells_morphkv_and_accumulated_mass_apart(stream: planted.Planted, shift: bool) -> None:
    ours, theirs = (planted.worth(stream, kept(stream, method)) for method in (MORPHKV, H2O))
    gain = ours["future_mass"][0] - theirs["future_mass"][0]
    if shift:
        assert gain > 10 * ours["future_mass"][1]
        assert ours["regret"][0] < theirs["regret"][0] / 2
    else:
        assert abs(gain) < 0.01  # of all attention; the shift makes it 0.15


def test_keys_in_the_place_of_queries_see_no_shift(stream: planted.Planted) -> None:
    keys = mx.array(stream.keys)
    *_, kept_rows = morphkv_update_batched(
        None, None, keys, keys, N_SINK, BUDGET, WINDOW, return_indices=True
    )
    assert of_second_topic(stream, np.array(kept_rows)) == pytest.approx(0.5, abs=0.1)
