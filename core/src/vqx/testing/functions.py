"""The laws of a method's functions, where a package offers it as the adapted system does: states and updates.

Kept rows of one head, or of many at once, token by token with keys as queries (``vqx.stream.advance``).
"""

import inspect
from types import ModuleType
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import pytest

from vqx.testing.driving import same_bits
from vqx.testing.streams import Shape, stream

TOKENS = stream("gaussian", shape=Shape(length=40))


class FunctionLaws:
    """Inherit, name the module, its method's word and options; pytest collects the laws under your class.

    The functions are ``init_NAME_state``, ``NAME_update``, ``NAME_update_batched``, ``NAME_get_kv``,
    ``NAME_fp16_bytes`` and ``full_NAME_fp16_bytes``. A state's arrays are those of its fields
    that are None before the first token.
    """

    module: ClassVar[ModuleType]
    name: ClassVar[str]
    options: ClassVar[dict[str, Any]]
    """With 2 sinks, a budget of 9, and the newest row safe."""

    def test_an_empty_state_gives_zero_rows(self) -> None:
        keys, values = self._("{}_get_kv", self._empty())
        assert keys.shape == values.shape == (0, 1)

    def test_kept_rows_are_oldest_first_and_never_above_the_budget(self) -> None:
        state = self._fed(0, 5)
        assert self._("{}_get_kv", state)[0].shape == (5, 16)
        state = self._fed(5, 40, state=state)
        keys, values = self._("{}_get_kv", state)
        assert (keys.shape, values.shape, self._seen(state)) == ((9, 16), (9, 6), 40)
        order = [int((TOKENS.keys[0, 0] == row).all(axis=1).argmax()) for row in keys]
        assert order[:2] == [0, 1]
        assert np.diff(order).min() > 0
        assert order[-1] == 39
        if "positions" in state._fields:
            assert (state.positions.dtype, state.positions.tolist()) == (mx.int32, order)

    def test_bytes_count_keys_and_values_in_sixteen_bits(self) -> None:
        assert self._("{}_fp16_bytes", self._empty()) == 0
        assert self._("{}_fp16_bytes", self._fed(0, 5)) == 2 * 5 * (16 + 6)
        assert self._("{}_fp16_bytes", self._fed(0, 40)) == 2 * 9 * (16 + 6)
        assert self._("full_{}_fp16_bytes", 40, 16) == 2 * 40 * (16 + 16)

    @pytest.mark.parametrize("lanes", [(), (2,), (2, 2)])
    def test_indices_point_into_the_old_rows_followed_by_the_new(self, lanes: tuple[int, ...]) -> None:
        keys, values = (array[(0,) * (2 - len(lanes))] for array in TOKENS[1:])
        counts = (
            "next_pos" in inspect.signature(getattr(self.module, f"{self.name}_update_batched")).parameters
        )
        arrays = len(self._arrays(self._empty()))
        batched, seen = "{}_update_batched", {"next_pos": 20} if counts else {}
        rows = self._(batched, *[None] * arrays, keys[..., :20, :], values[..., :20, :], **self.options)[
            :arrays
        ]
        new = keys[..., 20:32, :], values[..., 20:32, :]
        found = self._(batched, *rows, *new, **self.options, **seen, return_indices=True)
        assert found[arrays + 1 :] == ((32,) if counts else ())
        indices = found[arrays]
        assert (indices.dtype, indices.shape) == (mx.int32, (*lanes, 9))
        assert (np.array(indices) < 9).any()
        assert (np.array(indices) >= 9).any()
        for one, old, fresh in zip(found, rows[:2], new, strict=False):
            both = mx.concatenate([old, fresh], axis=-2)
            assert same_bits(one, mx.take_along_axis(both, indices[..., None], axis=-2))

    @pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
    def test_keys_and_values_keep_sixteen_bits_and_all_else_is_wide(self, dtype: mx.Dtype) -> None:
        state = self._fed(30, 40, dtype, self._fed(0, 30, dtype))
        # the same rows as from the rounded numbers in 32 bits: nothing else was rounded
        rounded = [array[0, 0].astype(dtype).astype(mx.float32) for array in TOKENS[1:]]
        wide = self._("{}_update", self._empty(), *rounded)
        for one, other in zip(self._arrays(state)[:2], self._arrays(wide), strict=False):
            assert one.dtype == dtype
            assert same_bits(one, other.astype(dtype))
        for one, other in zip(self._arrays(state)[2:], self._arrays(wide)[2:], strict=True):
            assert one.dtype in (mx.float32, mx.int32)
            np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-5, atol=1e-5)

    def test_nan_keys_are_refused_and_the_state_is_as_before(self) -> None:
        state = self._fed(0, 20)
        before = [mx.array(array) for array in self._arrays(state)]
        broken = mx.where(mx.arange(16) == 3, mx.nan, TOKENS.keys[0, 0, 20:25])
        with pytest.raises(ValueError, match="NaN: nothing was stored"):
            self._("{}_update", state, broken, TOKENS.values[0, 0, 20:25])
        assert all(map(same_bits, self._arrays(state), before))
        assert self._seen(self._fed(20, 40, state=state)) == 40

    def test_shapes_that_do_not_fit_are_refused(self) -> None:
        keys, values = (array[0, 0, 20:25] for array in TOKENS[1:])
        with pytest.raises(ValueError, match="do not fit each other"):
            self._("{}_update", self._fed(0, 20), keys, values[:4])
        with pytest.raises(ValueError, match="do not fit the rows held"):
            self._("{}_update", self._fed(0, 20), keys[:, :8], values)

    def _(self, function: str, *given: Any, **options: Any) -> Any:
        return getattr(self.module, function.format(self.name))(*given, **options)

    def _empty(self) -> Any:
        return self._("init_{}_state", head_dim=16, **self.options)

    def _fed(self, start: int, stop: int, dtype: mx.Dtype = mx.float32, state: Any = None) -> Any:
        rows = (array[0, 0, start:stop].astype(dtype) for array in TOKENS[1:])
        return self._("{}_update", self._empty() if state is None else state, *rows)

    def _arrays(self, state: Any) -> tuple[Any, ...]:
        empty = self._empty()._asdict()
        return tuple(getattr(state, name) for name, value in empty.items() if value is None)

    def _seen(self, state: Any) -> int:
        return int(state.next_pos if "next_pos" in state._fields else state.pos)
