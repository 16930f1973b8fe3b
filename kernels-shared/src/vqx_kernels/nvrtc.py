"""CUDA kernels compiled once for all processes, by the compiler that MLX has loaded.

MLX compiles a kernel of one's own anew in every process, below headers of its own that take NVIDIA's compiler
more than a second each. But it looks for a file first, named by a hash of the text, in the folder of what it
compiled of its own (mlx/backend/cuda/{custom_kernel,jit_module}.cpp, 0.32). Here the same text is compiled
below the few lines that our kernels need of these headers, and stored as that file. Where anything is not as
expected nothing is stored, and MLX compiles as ever.
"""

import ctypes
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "bool": "bool"} | {
    name: f"{name}_t" for name in INTEGERS
}
"""As MLX writes them in CUDA."""

HEADERS = {
    "mlx/backend/cuda/device/utils.cuh": """#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define INFINITY __int_as_float(0x7f800000)
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
namespace mlx::core::cu {
struct Shape { int32_t held[10]; __device__ int32_t operator[](int i) const { return held[i]; } };
struct Strides { int64_t held[10]; __device__ int64_t operator[](int i) const { return held[i]; } };
}
""",
    "cooperative_groups.h": "#pragma once\nnamespace cooperative_groups {}\n",
}
"""In the place of what MLX includes: the same layouts (its arrays of MAX_NDIM numbers), and nothing else."""


class Compiler(NamedTuple):
    """NVRTC, and what it compiles for."""

    library: Any
    architecture: str  # as of its option, such as sm_90a
    includes: tuple[str, ...]  # folders of NVIDIA's headers

    def compiled(self, text: str, kernel: str, *options: str) -> tuple[bytes, str] | None:
        """(machine code, or PTX of an architecture that is none of a device's, mangled name of the kernel).

        None: the compiler refuses the text.
        """
        program, size, name = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_char_p()
        given = (len(HEADERS), _strings(HEADERS.values()), _strings(HEADERS))
        if self.library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"vqx.cu", *given):
            return None
        try:
            asked = ["--device-as-default-execution-space", f"--gpu-architecture={self.architecture}"]
            asked += [*(f"--include-path={folder}" for folder in self.includes), *options]
            form = "CUBIN" if self.architecture.startswith("sm_") else "PTX"
            self.library.nvrtcAddNameExpression(program, kernel.encode())
            if self.library.nvrtcCompileProgram(program, len(asked), _strings(asked)):
                return None
            self.library.nvrtcGetLoweredName(program, kernel.encode(), ctypes.byref(name))
            getattr(self.library, f"nvrtcGet{form}Size")(program, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            getattr(self.library, f"nvrtcGet{form}")(program, code)
            return (code.raw, name.value.decode()) if name.value and size.value else None
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def told(self) -> str:
        """What another machine's code must not be taken for."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{self.architecture}, NVRTC {major.value}.{minor.value}"


def stored(made: dict[str, Any], types: Sequence[mx.Dtype], outputs: Sequence[mx.Dtype]) -> dict[str, Any]:
    """What ``mx.fast.cuda_kernel`` is to be called with, for these types, once the code is there."""
    compiler = found()
    if compiler is None:
        return made
    made = {**made, "header": f"{made['header']}// {compiler.told()}\n"}
    text = generated(made, types, outputs)
    try:
        own = _folder() / f"custom_kernel_{made['name']}_{_hash(text):x}.ptx"
        kernel = f"mlx::core::cu::custom_kernel_{made['name']}"
        done = None if own.exists() else compiler.compiled(text, kernel)
        if done is not None:
            own.parent.mkdir(parents=True, exist_ok=True)
            _write(own.with_suffix(".txt"), f"{kernel}\t{done[1]}\n".encode())
            _write(own, done[0])  # the last, since MLX looks for it first
    except (OSError, AttributeError, KeyError):
        pass
    return made


def generated(made: Mapping[str, Any], types: Sequence[mx.Dtype], outputs: Sequence[mx.Dtype]) -> str:
    """The text that MLX makes of what ``mx.fast.cuda_kernel`` is called with, to the byte."""
    name, source, parameters = f"custom_kernel_{made['name']}", made["source"], []
    for label, dtype in zip(made["input_names"], types, strict=True):
        parameters.append(f"    const {TYPES[dtype_name(dtype)]}* {label}")
        for suffix, kind in (("shape", "Shape"), ("strides", "Strides"), ("ndim", "int")):
            if f"{label}_{suffix}" in source:
                parameters.append(f"    const __grid_constant__ {kind} {label}_{suffix}")
    for label, dtype in zip(made["output_names"], outputs, strict=True):
        parameters.append(f"    {TYPES[dtype_name(dtype)]}* {label}")
    return (
        '\n#include "mlx/backend/cuda/device/utils.cuh"\n\n#include <cooperative_groups.h>\n\n'
        f"{made['header']}namespace mlx::core::cu {{\n\nnamespace cg = cooperative_groups;\n\n"
        f"__global__ void {name}(\n{(',' + chr(10)).join(parameters)}) {{\n{source}\n}}\n\n"
        "} // namespace mlx::core::cu\n"
    )


def dtype_name(dtype: mx.Dtype) -> str:
    """``float32`` of ``mx.float32``."""
    return str(dtype).rpartition(".")[2].rstrip("_")


@functools.cache
def found() -> Compiler | None:
    """The compiler that MLX has loaded, where all GPUs are of one kind; None: it is not as expected."""
    try:
        loaded = {
            line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()
        }
        path = next(path for path in sorted(loaded) if Path(path).name.startswith("libnvrtc.so"))
        (architecture,) = {_architecture(number) for number in range(mx.device_count(mx.gpu))}
        compiler = Compiler(ctypes.CDLL(path), architecture, tuple(_includes()))
        works = compiler.compiled(generated(_NOTHING, (), ()), "mlx::core::cu::custom_kernel_nothing")
    except (OSError, StopIteration, ValueError, KeyError, AttributeError):
        return None
    return None if works is None else compiler


_NOTHING: dict[str, Any] = {
    "name": "nothing",
    "input_names": [],
    "output_names": [],
    "header": "",
    "source": "",
}


def _architecture(number: int) -> str:
    """Of one of this machine's GPUs; that code for one runs on the others is not to be relied on."""
    info: Mapping[str, Any] = mx.device_info(mx.Device(mx.gpu, number))
    major, minor = info["compute_capability_major"], info["compute_capability_minor"]
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _includes() -> list[str]:
    """Where NVIDIA's headers are, as MLX looks for them: beside its package, or where CUDA is installed."""
    beside = Path(mx.__file__).parent.parent / "nvidia"
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [*beside.glob("cu*/include"), *(Path(home or "/usr/local/cuda") / "include" for home in homes)]
    return [str(folder) for folder in folders if (folder / "cuda_fp16.h").exists()][:1]


def _folder() -> Path:
    """Where MLX looks for compiled code."""
    if own := os.environ.get("MLX_PTX_CACHE_DIR"):
        return Path(own)
    asked = [os.environ.get(name) for name in ("TMPDIR", "TMP", "TEMP", "TEMPDIR")]
    usual = next((path for path in asked if path), "/tmp")
    return Path(usual, "mlx", str(vars(mx)["__version__"]), "ptx")


def _hash(text: str) -> int:
    """``std::hash`` of the text, by the library that MLX is linked to."""
    hashed = ctypes.CDLL("libstdc++.so.6")._ZSt11_Hash_bytesPKvmm
    hashed.argtypes, hashed.restype = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t), ctypes.c_size_t
    data = text.encode()
    return int(hashed(data, len(data), 0xC70F6907))


def _write(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)


def _strings(texts: Any) -> Any:
    """An array of C strings."""
    held = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(held))(*held)
