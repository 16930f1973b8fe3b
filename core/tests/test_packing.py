"""Rows in fewer bits are what MLX's own quantisation makes of them, a row as one string of words."""

import mlx.core as mx
import pytest
from vqx.options import Options
from vqx.state.packing import packing_of


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_a_packed_row_comes_back_as_mlx_rounds_it(bits: int, group_size: int, dtype: mx.Dtype) -> None:
    keys = mx.random.normal((2, 3, 5, 128), key=mx.random.key(0)).astype(dtype)
    values = mx.random.normal((2, 3, 5, 64), key=mx.random.key(1)).astype(dtype)
    packing = packing_of(bits, group_size, keys, values)
    words = packing.packed(keys, values)
    order = mx.array([3, 0, 4])
    moved = packing.unpacked(*(mx.take(one, order, axis=2) for one in words))
    for row, found in zip((keys, values), moved, strict=True):
        right = mx.dequantize(
            *mx.quantize(row, group_size=group_size, bits=bits), group_size=group_size, bits=bits
        )
        assert mx.array_equal(found, right[:, :, order]).item()
        assert found.dtype == dtype
    groups = 128 // group_size
    assert words[0].nbytes // 30 == 128 * bits // 8 + 2 * groups * dtype.size


def test_what_cannot_be_packed_is_refused() -> None:
    rows = mx.zeros((1, 1, 1, 80))
    with pytest.raises(ValueError, match="keys of 80 channels make no whole groups of group_size=64"):
        packing_of(4, 64, rows, rows)
    with pytest.raises(ValueError, match="bits=7 is not known"):
        Options(bits=7)
    with pytest.raises(ValueError, match="group_size=16 is not known"):
        Options(bits=4, group_size=16)
    with pytest.raises(ValueError, match="at positions='absolute' and undo=0 only"):
        Options(bits=4, positions="compact")
    with pytest.raises(ValueError, match="at positions='absolute' and undo=0 only"):
        Options(bits=4, undo=2)
