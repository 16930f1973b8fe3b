"""Metal and CUDA kernels on a CPU: called as ``mx.fast.metal_kernel`` and ``mx.fast.cuda_kernel`` are.

The text is the one that the device's compiler would get, from MLX itself. Each thread of a block is a fiber
that runs to the next barrier or shuffle, so the order of threads can be chosen. Guard pages stand around
every array, and what nobody wrote holds NaN.
"""

import ctypes
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx_kernels import nvrtc
from vqx_kernels.testing import generated, rewrite, toolchain
from vqx_kernels.testing.toolchain import HERE, Refused

ORDERS = {"forward": 0, "reverse": 1, "random": 2}
REDUCTIONS = {"butterfly": 0, "linear": 1, "reverse": 2, "random": 3}
KERNEL = ("-ffp-contract=off", "-Wno-everything", "-Xclang", "-ffloat16-excess-precision=none")


class Conditions(NamedTuple):
    """What a device may do in its own way, and no result may depend on."""

    order: str = "forward"
    """How threads take turns."""
    seed: int = 1
    reduce: str = "butterfly"
    """In which order Metal's own ``simd_sum`` adds."""
    flush: bool = False
    """Subnormal numbers become 0, as on Apple's GPUs."""
    poison: int = 0xFF
    """The byte that fills memory which nobody wrote."""
    contract: bool = False
    """The compiler makes fma of every product that it sees added, as NVIDIA's does, and some of Apple's."""


class _Options(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32) for name in ("order", "seed", "relaxed", "reduce", "ulp", "ftz", "cuda_grid")
    ]


class Launch(NamedTuple):
    """One call of a kernel: its text, and the arrays as bytes."""

    name: str
    text: str
    arrays: list[tuple[str, Any]]
    outputs: list[tuple[str, Any]]
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]


class Kernel:
    """A kernel as ``mx.fast.metal_kernel`` (``target="metal"``) or ``mx.fast.cuda_kernel`` makes it."""

    def __init__(self, target: str, conditions: Conditions, **made: Any) -> None:
        self.target, self.conditions, self.made = target, conditions, made

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, Any]] = (),
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        launch = self.launch(inputs, template, grid, threadgroup, output_shapes, output_dtypes)
        results = dispatch(self.target, launch, self.conditions)
        return [_to_mlx(a, d) for a, d in zip(results, output_dtypes, strict=True)]

    def launch(
        self,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> Launch:
        """The text and the memory of a call."""
        call = {
            "template": list(template), "grid": grid, "threadgroup": threadgroup,
            "output_shapes": list(output_shapes), "output_dtypes": list(output_dtypes),
        }  # fmt: skip
        name, text = generated.text(self.target, self.made, inputs, call)
        strided = not self.made.get("ensure_row_contiguous", True)
        arrays: list[tuple[str, Any]] = []
        for label, array in zip(self.made["input_names"], inputs, strict=True):
            memory, strides = _memory(array, strided)
            arrays.append((label, memory))
            for suffix, value in (("shape", np.int32), ("strides", np.int64), ("ndim", np.int32)):
                if f"{label}_{suffix}" in self.made["source"]:
                    numbers = {"shape": array.shape, "strides": strides, "ndim": [array.ndim]}[suffix]
                    # CUDA's Shape and Strides hold ten numbers
                    room = [0] * (10 - len(numbers)) if self.target == "cuda" else []
                    arrays.append((f"{label}_{suffix}", np.array([*numbers, *room], value)))
        outputs = [
            (label, np.empty(shape, generated.NUMPY[nvrtc.dtype_name(kind)]))
            for label, shape, kind in zip(
                self.made["output_names"], output_shapes, output_dtypes, strict=True
            )
        ]
        return Launch(name, text, arrays, outputs, grid, threadgroup)


def dispatch(target: str, launch: Launch, conditions: Conditions) -> list[Any]:
    """Run every thread of a launch; the outputs.

    Raises:
        Refused: threads that part at a barrier or shuffle, a place outside an array, an input written to.
    """
    engine, options = _engine(), options_of(target, conditions)
    program = _program(target, launch.name, launch.text, conditions.contract)
    try:
        pointers = []
        for _, array in (*launch.arrays, *launch.outputs):
            pointer = engine.msl_alloc(max(array.nbytes, 1), 1)
            pointers.append(pointer)
        for pointer, (_, array) in zip(pointers, launch.arrays, strict=False):
            ctypes.memmove(pointer, array.ctypes.data, array.nbytes)
        for pointer, (_, array) in zip(pointers[len(launch.arrays) :], launch.outputs, strict=True):
            ctypes.memset(pointer, conditions.poison, array.nbytes)
        held = (ctypes.c_void_p * len(pointers))(*pointers)
        triple = ctypes.c_uint32 * 3
        failed = engine.msl_dispatch(
            program.msl_entry, held, triple(*launch.grid), triple(*launch.threadgroup), ctypes.byref(options)
        )
        names = [name for name, _ in (*launch.arrays, *launch.outputs)]
        if failed:
            said = engine.msl_error().decode()
            raise Refused(re.sub(r"buffer (\d+)", lambda m: names[int(m[1])], said))
        dirty = engine.msl_slack_dirty()
        if dirty:
            raise Refused(f"a write past the end of {names[dirty - 1]}")
        for pointer, (name, array) in zip(pointers, launch.arrays, strict=False):
            if ctypes.string_at(pointer, array.nbytes) != array.tobytes():
                raise Refused(f"the kernel changed its input {name}")
        for pointer, (_, array) in zip(pointers[len(launch.arrays) :], launch.outputs, strict=True):
            ctypes.memmove(array.ctypes.data, pointer, array.nbytes)
        return [array.copy() for _, array in launch.outputs]
    finally:
        engine.msl_free_all()


def options_of(target: str, conditions: Conditions) -> _Options:
    """The engine's options; CUDA rounds a grid up to whole blocks."""
    order, reduce = ORDERS[conditions.order], REDUCTIONS[conditions.reduce]
    return _Options(order, conditions.seed, 0, reduce, 0, int(conditions.flush), int(target == "cuda"))


@functools.cache
def _engine() -> Any:
    path = toolchain.library("engine", (HERE / "engine.cpp").read_text(), (f"-I{HERE}",))
    engine = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    engine.msl_alloc.restype = ctypes.c_void_p
    engine.msl_alloc.argtypes = [ctypes.c_size_t, ctypes.c_int]
    engine.msl_error.restype = ctypes.c_char_p
    return engine


@functools.cache
def _program(target: str, name: str, text: str, contract: bool) -> Any:
    _engine()
    flags = KERNEL
    if contract:
        text = text.replace("#pragma METAL fp contract(off)", "")
        flags = ("-ffp-contract=fast", *KERNEL[1:])
    unit = translation(target, name, text)
    return ctypes.CDLL(str(toolchain.library(target, unit, (*flags, *toolchain.includes()))))


def translation(target: str, name: str, text: str) -> str:
    """The C++ of a kernel, with a way in."""
    return rewrite.metal(name, text) if target == "metal" else rewrite.cuda(name, text)


def _memory(array: mx.array, strided: bool) -> tuple[Any, tuple[int, ...]]:
    """An array as the kernel finds it: its storage, from its first number on, and the strides in numbers."""
    mx.eval(array)
    raw = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    view = np.array(raw, copy=False)
    if not strided or view.flags.c_contiguous or not view.size:
        view = np.ascontiguousarray(view)
        return view, tuple(stride // view.itemsize for stride in view.strides)
    span = sum((k - 1) * step for k, step in zip(view.shape, view.strides, strict=True)) // view.itemsize + 1
    storage = np.lib.stride_tricks.as_strided(view, (span,), (view.itemsize,)).copy()
    return storage, tuple(stride // view.itemsize for stride in view.strides)


def _to_mlx(array: Any, dtype: mx.Dtype) -> mx.array:
    return mx.array(array).view(mx.bfloat16) if dtype == mx.bfloat16 else mx.array(array)
