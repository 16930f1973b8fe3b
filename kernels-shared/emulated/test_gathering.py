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
