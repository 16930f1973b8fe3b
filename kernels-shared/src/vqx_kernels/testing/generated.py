"""The text that a device's compiler gets.

Metal's comes from MLX itself: exporting a function records a ``metal_kernel`` call even where there is no
Metal, and hands over the whole generated source. ``mx.fast.cuda_kernel`` raises where there is no CUDA, so
its text is built as MLX does (``vqx_kernels.nvrtc``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from vqx_kernels import nvrtc

NUMPY: dict[str, Any] = {
    "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "bool": np.bool_,
    **{name: np.dtype(name).type for name in nvrtc.INTEGERS},
}  # fmt: skip


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
    suffix, constants = "", ""
    for key, value in call["template"]:
        kind = "bool" if isinstance(value, bool) else "int"
        suffix += f"_{('f', 't')[value] if isinstance(value, bool) else value}"
        constants += f"  constexpr {kind} {key} = {str(value).lower()};\n"
    source = f"{constants}\n{made['source']}" if constants else made["source"]
    named = {**made, "name": made["name"] + suffix, "source": source}
    types = [array.dtype for array in inputs]
    return f"custom_kernel_{named['name']}", nvrtc.generated(named, types, call["output_dtypes"])
