"""What MLX is handed of a CUDA kernel is short, and to a compiler the whole text."""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from vqx_kernels import kernel
from vqx_kernels.bodies import compose
from vqx_kernels.testing import generated, toolchain

FLOATS = {"queries": 5, "keys": 4}


def told(*names: str, layers: int = 1) -> dict[str, Any]:
    body = compose(names, layers=layers, blocks=3)
    return kernel.texts("cuda", body, (mx.float16,), (("D", 64), ("TN", 128)))


def preprocessed(made: dict[str, Any]) -> list[str]:
    """The words that a compiler sees of the text that MLX generates, less those of MLX's own headers."""
    inputs = [mx.zeros((1,) * FLOATS.get(name.split("_")[0], 1)) for name in made["input_names"]]
    call = {"template": [], "output_dtypes": [mx.float32] * len(made["output_names"])}
    text = re.sub(r"#include (<|\"mlx).*", "", generated.cuda(made, inputs, call)[1])
    done = toolchain.clang("-E", "-P", text=text)
    assert not done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("names", [("logits",), ("bars",), ("survivors", "moved")])
def test_a_compiler_sees_the_whole_text(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VQX_CACHE", str(tmp_path))
    whole = told(*names)
    short = kernel.by_file(whole)
    assert len(short["header"]) + len(short["source"]) < 600 + 2 * len(str(tmp_path))
    assert len(whole["header"]) + len(whole["source"]) > 8000
    found = preprocessed(short)
    assert len(found) > 1000
    assert found == preprocessed(whole)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".h"]


def test_where_no_file_can_be_written_mlx_is_handed_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VQX_CACHE", str(tmp_path / "file"))
    assert kernel.by_file(told("logits")) == told("logits")
