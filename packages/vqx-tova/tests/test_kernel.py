"""TOVA's kernel keeps the rows that MLX operations keep, with the same bits on every target."""

from typing import Any

import mlx.core as mx
import pytest
from vqx.testing import kept_alike, same_bits_on
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
    chosen = kept_alike("tova", queries, dtype=dtype, budget=32, **options)
    assert chosen == (24 if queries == "model" else 0)


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_an_emulated_device_has_the_bits_of_the_host(target: str) -> None:
    for options in OPTIONS:
        same_bits_on(target, emulated(), "tova", budget=32, **options)
