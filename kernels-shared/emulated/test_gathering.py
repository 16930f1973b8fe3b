"""Rows of many arrays in one, on an emulated CUDA device."""

import mlx.core as mx
import pytest
from vqx_kernels import gathering
from vqx_kernels.testing import recorded


@pytest.mark.parametrize(("each", "first", "count", "rows"), [(5, 0, 1, 1), (1, 3, 4, 9)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rows_stand_as_if_they_were_put_together(
    each: int, first: int, count: int, rows: int, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "ARRAYS", 11)
    arrays = [mx.random.normal((2, 3, rows, 16), key=mx.random.key(i)).astype(dtype) for i in range(15)]
    with recorded() as launches:
        found = gathering.gathered("cuda", arrays, each, first, count)
        mx.eval(found)
    assert len(launches) == 2
    assert len(found) == 15 // each
    for number, one in enumerate(found):
        parts = [array[:, :, first : first + count] for array in arrays[number * each : (number + 1) * each]]
        assert mx.array_equal(one, mx.concatenate(parts, axis=2))


@pytest.mark.parametrize("dtype", [mx.int32, mx.float32])
def test_columns_stand_side_by_side(dtype: mx.Dtype) -> None:
    columns = [mx.random.randint(0, 99, (2, 3, 70), key=mx.random.key(i)).astype(dtype) for i in range(5)]
    with recorded() as launches:
        found = gathering.joined("cuda", columns)
        mx.eval(found)
    assert len(launches) == 1
    assert mx.array_equal(found, mx.concatenate(columns))


@pytest.mark.parametrize(("keep", "capacity", "width"), [(1, 1, 16), (40, 77, 64), (33, 50, 12)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rows_of_many_arrays_are_picked_at_slots_of_their_own(
    keep: int, capacity: int, width: int, dtype: mx.Dtype
) -> None:
    arrays = [mx.random.normal((2, 3, 50, width), key=mx.random.key(i)).astype(dtype) for i in range(4)]
    order = mx.argsort(mx.random.uniform(shape=(4, 3, 50), key=mx.random.key(9)), axis=2)
    slots = mx.sort(order[..., :keep], axis=2).astype(mx.int32)
    with recorded() as launches:
        found = gathering.picked("cuda", arrays, slots, capacity)
        mx.eval(found)
    assert len(launches) == 1
    for array, own, one in zip(arrays, 2 * mx.split(slots, 2), found, strict=True):
        assert one.shape == (2, 3, capacity, width)
        assert mx.array_equal(one[:, :, :keep], mx.take_along_axis(array, own[..., None], axis=2))
        assert not mx.any(one[:, :, keep:]).item()  # NaN, times a weight of zero, would be NaN
