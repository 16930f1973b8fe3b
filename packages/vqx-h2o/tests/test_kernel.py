"""H2O's kernel keeps the rows that MLX operations keep, with the same bits on every target."""

from typing import Any

import mlx.core as mx
import pytest
from vqx.testing import kept_alike, same_bits_on
from vqx_kernels.testing import emulated

OPTIONS: list[dict[str, Any]] = [{}, {"normalise": None, "decay": 0.9, "recent": 8}]
CUTS: dict[str, Any] = {"interval": 5}
"""Several rows go at once, those that stay are moved over them."""


CASES = [
    *(("model", mx.float32, options) for options in OPTIONS),
    ("model", mx.bfloat16, OPTIONS[0]),
    ("keys", mx.float32, OPTIONS[0]),
    ("model", mx.float32, CUTS),
]


@pytest.mark.parametrize(("queries", "dtype", "options"), CASES)
def test_the_kernel_keeps_what_mlx_operations_keep(
    queries: Any, dtype: mx.Dtype, options: dict[str, Any]
) -> None:
    chosen = kept_alike("h2o", queries, dtype=dtype, budget=32, **options)
    assert chosen == (0 if queries == "keys" else 4 if options is CUTS else 24)


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_an_emulated_device_has_the_bits_of_the_host(target: str) -> None:
    for options in (*OPTIONS, CUTS):
        same_bits_on(target, emulated(), "h2o", budget=32, **options)
