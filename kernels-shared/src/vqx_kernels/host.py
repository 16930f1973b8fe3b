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
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx_kernels.bodies import SMALL, STRIDED, Body

C_TYPES = {
    mx.float32: "float",
    mx.float16: "vqx_half",
    mx.bfloat16: "vqx_bfloat",
    mx.int32: "int32_t",
    mx.bool_: "bool",
}
RUNTIME = ("D", "H", "SPAN")
"""Constants that need no compilation of their own on the host."""

X86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
OWN = "-march=native" if X86 else "-mcpu=native"
"""This machine's own instructions; Apple's older clang knows only the second on its own processors."""
FLAGS = (
    "-std=c++17",
    "-O3",
    OWN,
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fPIC",
    "-shared",
)
FIRST = 'extern "C" int vqx_works() { return int(vqx_exp(0.0f)); }\n'
KEPT = 2**17
"""Bytes of results that are written over by the next run, and not freed."""
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


def prepared(
    body: Body,
    types: tuple[mx.Dtype, ...],
    constants: Mapping[str, int],
    parts: int,
    rows: int,
    outputs: Sequence[tuple[tuple[int, ...], mx.Dtype]],
) -> Callable[[list[mx.array]], list[mx.array]]:
    """A body as it runs at once: arrays are evaluated, which on a CPU waits for nothing else."""
    fixed = tuple((name, value) for name, value in constants.items() if name not in RUNTIME)
    function = _function(body, types, fixed, tuple(dtype for _, dtype in outputs))
    asked = [constants.get(name, 0) for name in RUNTIME]
    count = len(types)
    tells = [_tell_again if name in SMALL else _tell for name in body.reads]
    given_out = [
        None if name in body.inner else _narrow if dtype == mx.bfloat16 else mx.array
        for name, (_, dtype) in zip(body.writes, outputs, strict=True)
    ]
    spare: list[_Made] = []  # memory for results that nobody uses at the moment

    def call(arrays: list[mx.array]) -> list[mx.array]:
        mx.eval(*arrays)
        made = spare.pop() if spare else _made(count, outputs)
        tensors, given = made.tensors, arrays
        while True:
            told = [tell(array) for tell, array in zip(tells, given, strict=True)]
            tensors[:count] = [pointer for pointer, _ in told]
            apart = function(tensors, parts, rows, *asked)
            if apart < 0:
                break
            given = [mx.contiguous(array) if at == apart else array for at, array in enumerate(given)]
            mx.eval(given)
        found = [make(one) if make else NOTHING for make, one in zip(given_out, made.results, strict=True)]
        if made.nbytes <= KEPT and not spare:
            spare.append(made)
        return found

    return call


NUMPY: dict[mx.Dtype, Any] = {
    mx.float32: np.float32, mx.float16: np.float16, mx.bfloat16: np.uint16,  # NumPy has no bfloat16
    mx.int32: np.int32, mx.bool_: np.bool_,
}  # fmt: skip

NOTHING = mx.zeros((0,))

_PEEK = ctypes.pythonapi.PyCapsule_GetPointer
_PEEK.restype, _PEEK.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _tell(array: Any) -> tuple[int, Any]:
    """An array's memory as DLPack tells it: a pointer, good while the capsule beside it is held."""
    capsule = array.__dlpack__()
    return _PEEK(capsule, b"dltensor"), capsule


_tell_again = functools.lru_cache(maxsize=1024)(_tell)
"""The same of small arrays, which come again and again; those held here stay in memory."""


def _narrow(result: Any) -> mx.array:
    return mx.array(result).view(mx.bfloat16)


class _Made(NamedTuple):
    """Memory that a body writes to, and copies are made of."""

    results: list[Any]
    held: list[Any]
    tensors: Any  # pointers, first those of as many arrays as are read
    nbytes: int


def _made(reads: int, outputs: Sequence[tuple[tuple[int, ...], mx.Dtype]]) -> _Made:
    results = [np.empty(shape, NUMPY[dtype]) for shape, dtype in outputs]
    told = [_tell(result) for result in results]
    tensors = (ctypes.c_void_p * (reads + len(outputs)))()
    tensors[reads:] = [pointer for pointer, _ in told]
    views = [result.data for result in results]  # which MLX copies faster than NumPy's arrays
    return _Made(views, told, tensors, sum(view.nbytes for view in views))


@functools.cache
def _function(
    body: Body,
    types: tuple[mx.Dtype, ...],
    constants: tuple[tuple[str, int], ...],
    gives: tuple[mx.Dtype, ...],
) -> Any:
    return _load(translation(body, types, constants, gives), compiler().command, body.name).vqx_run


def translation(
    body: Body,
    types: tuple[mx.Dtype, ...],
    constants: tuple[tuple[str, int], ...],
    gives: tuple[mx.Dtype, ...],
) -> str:
    """The C++ of a body for these types and constants.

    What it builds is called with DLPack's tensors, and answers which one of them does not lie row by row as
    it has to, so that nothing was done, or -1.
    """
    asked, passed, rows = [], [], []
    for number, (name, kind) in enumerate(zip((*body.reads, *body.writes), (*types, *gives), strict=True)):
        asked.append(f"{'const ' * (number < len(types))}{C_TYPES[kind]}* __restrict {name}")
        passed.append(f"({C_TYPES[kind]}*)a[{number}]->first()")
        if name in STRIDED:
            asked.append(f"const vqx_i64* {name}_strides")
            passed.append(f"a[{number}]->strides")
        else:
            rows.append(f"  if (!a[{number}]->by_rows()) return {number};\n")
    fixed = "".join(f"constexpr int {name} = {int(value)};\n" for name, value in constants)
    runtime = ", ".join(f"const int {name}" for name in RUNTIME)
    return (
        f"{_header(body)}{fixed}"
        f"static void vqx_body({', '.join(asked)}, int vqx_part, int vqx_row, {runtime}) {{\n"
        f"{body.source('host')}}}\n"
        f'extern "C" int vqx_run(vqx_tensor** a, int parts, int rows, {runtime}) {{\n'
        f"{''.join(rows)}"
        "  for (int row = 0; row < rows; row++)\n"
        "    for (int part = 0; part < parts; part++)\n"
        f"      vqx_body({', '.join(passed)}, part, row, {', '.join(RUNTIME)});\n  return -1;\n}}\n"
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
    """What this machine's own instructions depend on: a cache folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return platform.machine() + next(
            (line for line in lines if line.startswith(("flags", "Features"))), ""
        )
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
