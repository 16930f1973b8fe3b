"""TOVA's kernel keeps the rows that MLX operations keep, with the same bits on every target."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx.testing import Shape, decoded
from vqx_kernels.testing import emulated

OPTIONS: list[dict[str, Any]] = [{"heads": "each"}, {"heads": "each", "keep_newest": False}]


CASES = [
    *(("model", mx.float32, options) for options in OPTIONS),
    ("model", mx.bfloat16, OPTIONS[0]),
    ("keys", mx.float32, OPTIONS[0]),
]


@pytest.mark.parametrize(("queries", "dtype", "options"), CASES)
def test_the_kernel_keeps_what_mlx_operations_keep(
    queries: Any, dtype: mx.Dtype, options: dict[str, Any]
) -> None:
    reference = decoded("reference", "tova", queries, dtype=dtype, budget=32, **options)
    found = decoded("host", "tova", queries, dtype=dtype, budget=32, **options)
    assert (reference.chosen, found.chosen) == (0, 23 if queries == "model" else 0)
    # scores differ by rounding, and no two of this stream are that close
    assert np.array_equal(found.position, reference.position)
    for name, column in reference.columns.items():
        np.testing.assert_allclose(found.columns[name], column, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_an_emulated_device_has_the_bits_of_the_host(target: str) -> None:
    shape = Shape(46, width=36)
    for options in OPTIONS:
        wanted = decoded("host", "tova", shape=shape, budget=32, **options)
        with emulated():
            found = decoded(target, "tova", shape=shape, budget=32, **options)
        assert found.chosen == wanted.chosen > 0
        assert np.array_equal(found.position, wanted.position)
        assert all(np.array_equal(found.columns[name], wanted.columns[name]) for name in wanted.columns)
