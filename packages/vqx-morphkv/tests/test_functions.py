"""MorphKV's public functions beside the mathematics: shapes, bytes, indices, types and refusals."""

import mlx.core as mx
import numpy as np
import pytest
from vqx.testing import Shape, same_bits, stream
from vqx_morphkv import (
    MorphKVState,
    full_morphkv_fp16_bytes,
    init_morphkv_state,
    morphkv_fp16_bytes,
    morphkv_get_kv,
    morphkv_update,
    morphkv_update_batched,
)

TOKENS = stream("gaussian", shape=Shape(length=40))
OPTIONS = {"n_sink": 2, "budget": 9, "window": 3}


def _state(
    start: int, stop: int, dtype: mx.Dtype = mx.float32, state: MorphKVState | None = None
) -> MorphKVState:
    state = init_morphkv_state(head_dim=16, **OPTIONS) if state is None else state
    keys, values = (array[0, 0, start:stop].astype(dtype) for array in TOKENS[1:])
    return morphkv_update(state, keys, values)


def test_an_empty_state_gives_zero_rows() -> None:
    keys, values = morphkv_get_kv(init_morphkv_state(head_dim=16, **OPTIONS))
    assert keys.shape == values.shape == (0, 1)


def test_kept_rows_are_oldest_first_and_never_above_the_budget() -> None:
    state = _state(0, 5)
    assert morphkv_get_kv(state)[0].shape == (5, 16)
    state = _state(5, 40, state=state)
    keys, values = morphkv_get_kv(state)
    assert (keys.shape, values.shape, state.pos) == ((9, 16), (9, 6), 40)
    order = [int((TOKENS.keys[0, 0] == row).all(axis=1).argmax()) for row in keys]
    assert order[:2] == [0, 1]
    assert np.diff(order).min() > 0
    assert order[-1] == 39


def test_bytes_count_keys_and_values_in_sixteen_bits() -> None:
    assert morphkv_fp16_bytes(init_morphkv_state(head_dim=16, **OPTIONS)) == 0
    assert morphkv_fp16_bytes(_state(0, 5)) == 2 * 5 * (16 + 6)
    assert morphkv_fp16_bytes(_state(0, 40)) == 2 * 9 * (16 + 6)
    assert full_morphkv_fp16_bytes(40, 16) == 2 * 40 * (16 + 16)


@pytest.mark.parametrize("lanes", [(), (2,), (2, 2)])
def test_indices_point_into_the_old_rows_followed_by_the_new(lanes: tuple[int, ...]) -> None:
    at = (0,) * (2 - len(lanes))
    keys, values = (array[at] for array in TOKENS[1:])
    rows = morphkv_update_batched(None, None, keys[..., :20, :], values[..., :20, :], **OPTIONS)
    new_keys, new_values = keys[..., 20:32, :], values[..., 20:32, :]
    *kept, indices = morphkv_update_batched(*rows, new_keys, new_values, **OPTIONS, return_indices=True)
    assert (indices.dtype, indices.shape) == (mx.int32, (*lanes, 9))
    assert (np.array(indices) < 9).any()
    assert (np.array(indices) >= 9).any()
    offered = mx.concatenate([rows[0], new_keys], axis=-2), mx.concatenate([rows[1], new_values], axis=-2)
    for one, both in zip(kept, offered, strict=True):
        assert same_bits(one, mx.take_along_axis(both, indices[..., None], axis=-2))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_keys_and_values_keep_sixteen_bits(dtype: mx.Dtype) -> None:
    state = _state(30, 40, dtype, _state(0, 30, dtype))
    keys, values = morphkv_get_kv(state)
    assert keys.dtype == values.dtype == dtype
    # the same rows as from the rounded numbers in 32 bits: nothing else was rounded
    wide = init_morphkv_state(head_dim=16, **OPTIONS)
    wide = morphkv_update(wide, *(array[0, 0].astype(dtype).astype(mx.float32) for array in TOKENS[1:]))
    for one, other in zip((keys, values), morphkv_get_kv(wide), strict=True):
        assert same_bits(one, other.astype(dtype))


def test_nan_keys_are_refused_and_the_state_is_as_before() -> None:
    state = _state(0, 20)
    before = [mx.array(array) for array in state[:2] if array is not None]
    broken = mx.where(mx.arange(16) == 3, mx.nan, TOKENS.keys[0, 0, 20:25])
    with pytest.raises(ValueError, match="NaN: nothing was stored"):
        morphkv_update(state, broken, TOKENS.values[0, 0, 20:25])
    for one, other in zip(state[:2], before, strict=True):
        assert one is not None
        assert same_bits(one, other)
    assert _state(20, 40, state=state).pos == 40


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit each other"):
        morphkv_update(_state(0, 20), TOKENS.keys[0, 0, 20:25], TOKENS.values[0, 0, 20:24])
    with pytest.raises(ValueError, match="do not fit the rows held"):
        morphkv_update(_state(0, 20), TOKENS.keys[0, 0, 20:25, :8], TOKENS.values[0, 0, 20:25])
