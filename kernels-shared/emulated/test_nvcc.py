"""NVIDIA's own compiler takes the CUDA text, and finds no product and sum in it that it could make one of."""

import re
import subprocess
from pathlib import Path

import pytest
from vqx_kernels import attention, probe, verify
from vqx_kernels.small import Guard
from vqx_kernels.testing import recorded

# what MLX's own header brings of what a body uses
HEADER = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
struct Strides { int64_t v[10]; __device__ int64_t operator[](int i) const { return v[i]; } };
"""


def text(number: int) -> str:
    """The CUDA text of a case of ``vqx_kernels.verify``."""
    case = verify.CASES[number]
    asked, mass = verify.inputs(number, case)
    with recorded() as launches:
        attention.step("cuda", asked, case.rule, probe.MASS, {"mass": mass}, Guard(4, 8), (0.5,))
    return launches[0][1].text.replace('#include "mlx/backend/cuda/device/utils.cuh"', HEADER)


def assembly(source: Path, contract: bool) -> str:
    """PTX for Hopper; what only tells the two modes apart is taken out."""
    target = source.with_suffix(f".{contract}.ptx")
    command = ["nvcc", "-arch=sm_90a", "-std=c++20", f"-fmad={str(contract).lower()}", "-ptx"]
    subprocess.run([*command, "-o", target, source], check=True, capture_output=True, text=True)
    return re.sub(r"\b(mul|add|sub)\.rn\.f32", r"\1.f32", target.read_text())


@pytest.mark.parametrize("name", ["half", "window", "fading"])
def test_nvcc_finds_nothing_to_contract(name: str, tmp_path: Path) -> None:
    number = next(at for at, case in enumerate(verify.CASES) if case.name == name)
    source = tmp_path / "kernel.cu"
    source.write_text(text(number))
    contracted = assembly(source, True)
    assert "fma.rn.f32" in contracted
    assert contracted == assembly(source, False)


def test_a_product_that_feeds_a_sum_would_be_found(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    right, wrong = "vqx_fma(each, shares[s], gained)", "each * shares[s] + gained"
    source.write_text(text(0).replace(right, wrong))
    assert wrong in source.read_text()
    assert assembly(source, True) != assembly(source, False)
