"""Bodies as C loops: compiled once with this machine's compiler, kept in the user's cache folder.

Without a compiler, or on a processor without fused multiply-add (the oldest x86-64), the reference of MLX
operations runs, and says so.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx_kernels.bodies import STRIDED, Body

C_TYPES = {
    mx.float32: "float",
    mx.float16: "vqx_half",
    mx.bfloat16: "vqx_bfloat",
    mx.int32: "int32_t",
    mx.bool_: "bool",
}
RUNTIME = ("D", "H", "SPAN")
"""Constants that need no compilation of their own on the host."""

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)
FIRST = 'extern "C" int vqx_works() { return int(vqx_exp(0.0f)); }\n'
_LOCK = threading.Lock()


class Compiler(NamedTuple):
    """What was found to compile with."""

    command: tuple[str, ...]
    usable: bool
    why: str


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``vqx`` in the user's cache folder, or ``VQX_CACHE``."""
    home = os.environ.get("VQX_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "vqx" / "kernels"


@functools.cache
def compiler(flags: tuple[str, ...] = FLAGS) -> Compiler:
    """The machine's C++ compiler (``CXX``, c++, g++, clang++, or the package ziglang), tried once."""
    found = _found()
    if not found:
        return Compiler((), False, "no C++ compiler (c++, g++, clang++ or CXX), so MLX operations run")
    path, command = found[0], (*found, *flags)
    text = "".join(_header(Body("works", (), (), "", "(logit)"))) + FIRST
    try:
        library = _load(text, command, "works")
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", "") or error).splitlines()
        said = next((line.partition("#error")[2] or line for line in lines if "error" in line), str(error))
        return Compiler(command, False, f"C loops do not build: {said.strip()}; MLX operations run")
    if library.vqx_works() != 1:
        return Compiler(command, False, f"what {path} builds does not compute; MLX operations run")
    return Compiler(command, True, f"C loops built by {path}, kept in {cache_folder()}")


def _found() -> tuple[str, ...]:
    """The command of a compiler; empty where there is none."""
    if asked := os.environ.get("CXX"):
        return tuple(shlex.split(asked))
    if path := next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None):
        return (path,)
    if find_spec("ziglang") is not None:  # its own C++ library is not needed, and would be built first
        return (sys.executable, "-m", "ziglang", "c++", "-nostdlib++")
    return ()


def run(
    body: Body,
    arrays: Sequence[mx.array],
    constants: Mapping[str, int],
    parts: int,
    rows: int,
    outputs: Sequence[tuple[tuple[int, ...], mx.Dtype]],
) -> list[mx.array]:
    """Run a body now: the arrays are evaluated, which on a CPU waits for nothing else."""
    fixed = tuple((name, value) for name, value in constants.items() if name not in RUNTIME)
    types = tuple(C_TYPES[array.dtype] for array in arrays)
    function = _function(body, types, fixed, tuple(C_TYPES[dtype] for _, dtype in outputs))
    mx.eval(*arrays)
    held = [_memory(array, name in STRIDED) for name, array in zip(body.reads, arrays, strict=True)]
    results: list[Any] = [np.empty(shape, NUMPY[dtype]) for shape, dtype in outputs]
    pointers = (ctypes.c_void_p * (len(held) + len(results)))(
        *(tensor.data + tensor.offset for tensor, _ in held),
        *(result.__array_interface__["data"][0] for result in results),
    )
    strides = (ctypes.POINTER(ctypes.c_int64) * len(held))(*(tensor.strides for tensor, _ in held))
    asked = (ctypes.c_int32 * len(RUNTIME))(*(int(constants.get(name, 0)) for name in RUNTIME))
    function(pointers, strides, parts, rows, asked)
    return [
        mx.array(result).view(mx.bfloat16) if dtype == mx.bfloat16 else mx.array(result)
        for result, (_, dtype) in zip(results, outputs, strict=True)
    ]


NUMPY: dict[mx.Dtype, Any] = {
    mx.float32: np.float32, mx.float16: np.float16, mx.bfloat16: np.uint16,  # NumPy has no bfloat16
    mx.int32: np.int32, mx.bool_: np.bool_,
}  # fmt: skip


class _Tensor(ctypes.Structure):
    """An array's memory as DLPack tells it, bfloat16 among its types; strides count numbers."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


_PEEK = ctypes.pythonapi.PyCapsule_GetPointer
_PEEK.restype, _PEEK.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _memory(array: mx.array, strided: bool) -> tuple[_Tensor, Any]:
    """Where an evaluated array lies, and what keeps it there."""
    capsule = array.__dlpack__()
    tensor = _Tensor.from_address(_PEEK(capsule, b"dltensor"))
    if strided or _by_rows(array.shape, tensor.strides):
        return tensor, capsule
    whole = mx.contiguous(array)
    mx.eval(whole)
    return _memory(whole, True)


def _by_rows(shape: tuple[int, ...], strides: Any) -> bool:
    step = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] > 1 and strides[axis] != step:
            return False
        step *= shape[axis]
    return True


@functools.cache
def _function(
    body: Body, types: tuple[str, ...], constants: tuple[tuple[str, int], ...], gives: tuple[str, ...]
) -> Any:
    library = _load(translation(body, types, constants, gives), compiler().command, body.name)
    library.vqx_run.restype = None
    return library.vqx_run


def translation(
    body: Body, types: tuple[str, ...], constants: tuple[tuple[str, int], ...], gives: tuple[str, ...]
) -> str:
    """The C++ of a body for these types and constants."""
    asked, given, passed = [], [], []
    for number, (name, kind) in enumerate(zip(body.reads, types, strict=True)):
        asked.append(f"const {kind}* __restrict {name}")
        passed.append(f"(const {kind}*)a[{number}]")
        if name in STRIDED:
            asked.append(f"const vqx_i64* {name}_strides")
            passed.append(f"strides[{number}]")
    for number, (name, kind) in enumerate(zip(body.writes, gives, strict=True), len(types)):
        given.append(f"{kind}* __restrict {name}")
        passed.append(f"({kind}*)a[{number}]")
    fixed = "".join(f"constexpr int {name} = {int(value)};\n" for name, value in constants)
    runtime = ", ".join(f"const int {name}" for name in RUNTIME)
    values = ", ".join(f"c[{number}]" for number in range(len(RUNTIME)))
    return (
        f"{_header(body)}{fixed}"
        f"static void vqx_body({', '.join([*asked, *given])}, int vqx_part, int vqx_row, {runtime}) {{\n"
        f"{body.source('host')}}}\n"
        'extern "C" void vqx_run(\n'
        "    void** a, const vqx_i64** strides, int parts, int rows, const int32_t* c) {\n"
        "  for (int row = 0; row < rows; row++)\n"
        "    for (int part = 0; part < parts; part++)\n"
        f"      vqx_body({', '.join(passed)}, part, row, {values});\n}}\n"
    )


def _header(body: Body) -> str:
    return body.header("host")


def _load(text: str, command: tuple[str, ...], name: str) -> ctypes.CDLL:
    """The library of a text, compiled if this user has not compiled it on this kind of processor."""
    key = hashlib.sha256("\0".join((text, *command, _processor())).encode()).hexdigest()[:20]
    folder = cache_folder()
    library = folder / f"{name[:40]}-{key}.so"
    with _LOCK:
        if not library.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                source, built = Path(scratch, "kernel.cpp"), Path(scratch, "kernel.so")
                source.write_text(text)
                subprocess.run(
                    [*command, "-o", str(built), str(source)], check=True, capture_output=True, text=True
                )
                os.replace(built, library)
        return ctypes.CDLL(str(library))


@functools.cache
def _processor() -> str:
    """What -march=native depends on: a cache folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return platform.machine() + next(
            (line for line in lines if line.startswith(("flags", "Features"))), ""
        )
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
