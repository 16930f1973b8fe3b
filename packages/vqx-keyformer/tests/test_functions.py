"""Keyformer's public functions beside the mathematics: shapes, bytes, indices, types and refusals."""

import mlx.core as mx
import numpy as np
import pytest
from vqx.testing import Shape, same_bits, stream
from vqx_keyformer import (
    KeyformerState,
    full_keyformer_fp16_bytes,
    init_keyformer_state,
    keyformer_fp16_bytes,
    keyformer_get_kv,
    keyformer_update,
    keyformer_update_batched,
)

TOKENS = stream("gaussian", shape=Shape(length=40))
OPTIONS = {"n_sink": 2, "budget": 9, "recent": 3, "tau": 1.5, "seed": 4}


def _state(
    start: int, stop: int, dtype: mx.Dtype = mx.float32, state: KeyformerState | None = None
) -> KeyformerState:
    state = init_keyformer_state(head_dim=16, **OPTIONS) if state is None else state
    keys, values = (array[0, 0, start:stop].astype(dtype) for array in TOKENS[1:])
    return keyformer_update(state, keys, values)


def test_an_empty_state_gives_zero_rows() -> None:
    keys, values = keyformer_get_kv(init_keyformer_state(head_dim=16, **OPTIONS))
    assert keys.shape == values.shape == (0, 1)


def test_kept_rows_are_oldest_first_and_never_above_the_budget() -> None:
    state = _state(0, 5)
    assert keyformer_get_kv(state)[0].shape == (5, 16)
    state = _state(5, 40, state=state)
    keys, values = keyformer_get_kv(state)
    assert (keys.shape, values.shape, state.next_pos) == ((9, 16), (9, 6), 40)
    assert state.positions is not None
    assert state.positions.dtype == mx.int32
    assert np.diff(np.array(state.positions)).min() > 0


def test_bytes_count_keys_and_values_in_sixteen_bits() -> None:
    assert keyformer_fp16_bytes(init_keyformer_state(head_dim=16, **OPTIONS)) == 0
    assert keyformer_fp16_bytes(_state(0, 5)) == 2 * 5 * (16 + 6)
    assert keyformer_fp16_bytes(_state(0, 40)) == 2 * 9 * (16 + 6)
    assert full_keyformer_fp16_bytes(40, 16) == 2 * 40 * (16 + 16)


@pytest.mark.parametrize("lanes", [(), (2,), (2, 2)])
def test_indices_point_into_the_old_rows_followed_by_the_new(lanes: tuple[int, ...]) -> None:
    at = (0,) * (2 - len(lanes))
    keys, values = (array[at] for array in TOKENS[1:])
    nothing = (None,) * 5
    held = keyformer_update_batched(*nothing, keys[..., :20, :], values[..., :20, :], **OPTIONS)
    *rows, seen = held
    new_keys, new_values = keys[..., 20:32, :], values[..., 20:32, :]
    *kept, indices, seen = keyformer_update_batched(
        *rows, new_keys, new_values, next_pos=seen, **OPTIONS, return_indices=True
    )
    assert (indices.dtype, indices.shape, seen) == (mx.int32, (*lanes, 9), 32)
    assert (np.array(indices) < 9).any()
    assert (np.array(indices) >= 9).any()
    offered = mx.concatenate([rows[0], new_keys], axis=-2), mx.concatenate([rows[1], new_values], axis=-2)
    for one, both in zip(kept, offered, strict=False):
        assert same_bits(one, mx.take_along_axis(both, indices[..., None], axis=-2))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_keys_and_values_keep_sixteen_bits_and_mass_is_float32(dtype: mx.Dtype) -> None:
    state = _state(30, 40, dtype, _state(0, 30, dtype))
    keys, values = keyformer_get_kv(state)
    assert keys.dtype == values.dtype == dtype
    assert state.scores is not None
    assert state.scores.dtype == mx.float32
    # the same rows as from the rounded numbers in 32 bits: nothing else was rounded
    wide = init_keyformer_state(head_dim=16, **OPTIONS)
    wide = keyformer_update(wide, *(array[0, 0].astype(dtype).astype(mx.float32) for array in TOKENS[1:]))
    assert state.positions is not None
    assert wide.positions is not None
    assert wide.scores is not None
    assert state.positions.tolist() == wide.positions.tolist()
    np.testing.assert_allclose(np.array(state.scores), np.array(wide.scores), rtol=1e-5, atol=1e-5)


def test_nan_keys_are_refused_and_the_state_is_as_before() -> None:
    state = _state(0, 20)
    before = [mx.array(array) for array in state[:5] if array is not None]
    broken = mx.where(mx.arange(16) == 3, mx.nan, TOKENS.keys[0, 0, 20:25])
    with pytest.raises(ValueError, match="NaN: nothing was stored"):
        keyformer_update(state, broken, TOKENS.values[0, 0, 20:25])
    for one, other in zip(state[:5], before, strict=True):
        assert one is not None
        assert same_bits(one, other)
    assert _state(20, 40, state=state).next_pos == 40


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit each other"):
        keyformer_update(_state(0, 20), TOKENS.keys[0, 0, 20:25], TOKENS.values[0, 0, 20:24])
    with pytest.raises(ValueError, match="do not fit the rows held"):
        keyformer_update(_state(0, 20), TOKENS.keys[0, 0, 20:25, :8], TOKENS.values[0, 0, 20:25])


def test_rope_base_changes_nothing() -> None:
    rows = [array[0, 0] for array in TOKENS[1:]]
    one, other = (
        keyformer_update(init_keyformer_state(head_dim=16, rope_base=base, **OPTIONS), *rows)
        for base in (10000.0, 5.0)
    )
    assert one.positions is not None
    assert other.positions is not None
    assert one.positions.tolist() == other.positions.tolist()
