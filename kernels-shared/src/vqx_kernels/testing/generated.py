"""The text that a device's compiler gets.

Metal's comes from MLX itself: exporting a function records a ``metal_kernel`` call even where there is no
Metal, and hands over the whole generated source. ``mx.fast.cuda_kernel`` raises where there is no CUDA, so
its text is built here, as mlx/backend/cuda/custom_kernel.cpp (0.32) does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

INTEGERS = {f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
CUDA_TYPE = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "bool": "bool", **INTEGERS}
NUMPY: dict[str, Any] = {
    "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "bool": np.bool_,
    **{name: np.dtype(name).type for name in INTEGERS},
}  # fmt: skip


def dtype_name(dtype: mx.Dtype) -> str:
    """``float32`` of ``mx.float32``."""
    return str(dtype).rpartition(".")[2].rstrip("_")


def text(
    target: str, made: Mapping[str, Any], inputs: Sequence[mx.array], call: Mapping[str, Any]
) -> tuple[str, str]:
    """(name, source) of a kernel made and called as ``mx.fast.metal_kernel`` is."""
    return metal(made, inputs, call) if target == "metal" else cuda(made, inputs, call)


def metal(made: Mapping[str, Any], inputs: Sequence[mx.array], call: Mapping[str, Any]) -> tuple[str, str]:
    """What MLX generates for Metal."""
    kernel: Any = mx.fast.metal_kernel(**made)
    found: list[Any] = []

    def record(step: Mapping[str, Any]) -> None:
        if step.get("type") == "primitive" and step.get("name") == "CustomKernel":
            found.append(step["arguments"])

    mx.export_function(record, lambda *arrays: kernel(inputs=list(arrays), **call), *inputs)
    return found[0][0], found[0][1]


def cuda(made: Mapping[str, Any], inputs: Sequence[mx.array], call: Mapping[str, Any]) -> tuple[str, str]:
    """What MLX generates for CUDA."""
    name, constants, source = f"custom_kernel_{made['name']}", "", made["source"]
    for key, value in call["template"]:
        kind = "bool" if isinstance(value, bool) else "int"
        name += f"_{('f', 't')[value] if isinstance(value, bool) else value}"
        constants += f"  constexpr {kind} {key} = {str(value).lower()};\n"
    parameters = []
    for label, array in zip(made["input_names"], inputs, strict=True):
        parameters.append(f"    const {CUDA_TYPE[dtype_name(array.dtype)]}* {label}")
        for suffix, kind in (("shape", "Shape"), ("strides", "Strides"), ("ndim", "int")):
            if f"{label}_{suffix}" in source:
                parameters.append(f"    const __grid_constant__ {kind} {label}_{suffix}")
    for label, dtype in zip(made["output_names"], call["output_dtypes"], strict=True):
        parameters.append(f"    {CUDA_TYPE[dtype_name(dtype)]}* {label}")
    return name, (
        '\n#include "mlx/backend/cuda/device/utils.cuh"\n\n#include <cooperative_groups.h>\n\n'
        f"{made['header']}namespace mlx::core::cu {{\n\nnamespace cg = cooperative_groups;\n\n"
        f"__global__ void {name}(\n{(',' + chr(10)).join(parameters)}) {{\n{constants}\n{source}\n}}\n\n"
        "} // namespace mlx::core::cu\n"
    )
