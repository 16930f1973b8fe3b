"""MLX keeps a compiled CUDA kernel by its name and constants: everything else has to be in the name."""

import mlx.core as mx
import pytest
from vqx_kernels import Asked, bodies, gained
from vqx_kernels.testing import recorded


def names(dtype: mx.Dtype, target: str) -> list[str]:
    """Of the kernels that one query launches, against rows of this type."""
    queries, keys = mx.zeros((1, 1, 1, 1, 32), dtype), mx.zeros((1, 1, 5, 32), dtype)
    position = mx.arange(5, dtype=mx.int32).reshape(1, 1, 5)
    with recorded() as launches:
        gained(target, Asked(queries, keys, position, 4, 1.0))
    assert launches
    return [launch.name for _, launch in launches]


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_kernels_for_other_types_have_other_names(target: str) -> None:
    assert len({*names(mx.float16, target), *names(mx.bfloat16, target)}) == 2
    assert names(mx.float16, target) == names(mx.float16, target)


def test_kernels_of_another_text_have_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, text = names(mx.float32, "cuda"), bodies._text
    monkeypatch.setattr(bodies, "_text", lambda name: text(name) + "// another\n" * (name == "gpu.h"))
    assert names(mx.float32, "cuda") != usual
