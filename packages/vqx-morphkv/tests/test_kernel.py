"""MorphKV's kernel keeps the rows that MLX operations keep, with the same bits on every target."""

from contextlib import nullcontext
from typing import Any

import mlx.core as mx
import pytest
from vqx.testing import Shape, kept_alike, same_bits_on
from vqx_kernels import attention
from vqx_kernels.testing import emulated, recorded

OPTIONS: list[dict[str, Any]] = [
    {},
    {"over": "old", "fuse": "max", "group": "logits"},
    {"group": "max", "window": 3},
]


CASES = [
    *(("model", mx.float32, options) for options in OPTIONS),
    ("model", mx.float16, {**OPTIONS[0], "shape": Shape(64, group=5, width=80)}),
    ("model", mx.bfloat16, {**OPTIONS[0], "shape": Shape(64, group=1, width=256)}),
    ("keys", mx.float16, {**OPTIONS[0], "shape": Shape(64, width=96)}),
]


@pytest.mark.parametrize(("queries", "dtype", "options"), CASES)
def test_the_kernel_keeps_what_mlx_operations_keep(
    queries: Any, dtype: mx.Dtype, options: dict[str, Any]
) -> None:
    chosen = kept_alike("morphkv", queries, dtype=dtype, budget=32, **options)
    assert chosen == (24 if queries == "model" else 0)


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_an_emulated_device_has_the_bits_of_the_host(target: str) -> None:
    for options in OPTIONS:
        same_bits_on(target, emulated(), "morphkv", budget=32, **options)


def test_rows_of_many_blocks_have_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("WHOLE", 16), ("SPAN", 16), ("TOGETHER", 0)):
        monkeypatch.setattr(attention, name, rows)
    with recorded() as launches:
        same_bits_on("cuda", nullcontext(), "morphkv", budget=32, **OPTIONS[0])
    blocks = [launch.grid[0] // launch.threadgroup[0] for _, launch in launches if "logits" in launch.name]
    assert set(blocks) == {3}
