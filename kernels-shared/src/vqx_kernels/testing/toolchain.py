"""clang as the package ``ziglang`` brings it (clang 22), and what it compiled, kept in a cache folder."""

import functools
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import mlx.core as mx

from vqx_kernels.host import cache_folder

HERE = Path(__file__).parent
DRIVER = (sys.executable, "-m", "ziglang")
QUIET = ("-fno-color-diagnostics", "-Wno-unused-command-line-argument")
BUILT = ("-O2", "-fPIC", "-shared", "-nostdlib++", "-fno-sanitize=all")


class Refused(RuntimeError):
    """A kernel that does not compile, or that did something while it ran that no GPU forgives."""


def folder() -> Path:
    """Where what was compiled is kept."""
    path = cache_folder().parent / "emulated"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


@functools.cache
def includes() -> tuple[str, ...]:
    """Where a kernel finds MLX's own Metal headers, and what stands for Metal's library."""
    zig = find_spec("ziglang")
    if zig is None or zig.origin is None:
        raise ModuleNotFoundError("emulating Metal needs clang: pip install 'vqx-kernels[testing]'")
    mlx = Path(mx.__file__).parent / "include"
    own = (_overlay(mlx), HERE / "include", mlx)
    # clang's own headers, which a kernel finds without a C library
    return tuple(f"-isystem{path}" for path in (*own, Path(zig.origin).parent / "lib" / "include"))


def _overlay(mlx: Path) -> Path:
    """MLX's utils.h with array parameters written as pointers: clang gives those no address space."""
    below = Path("mlx", "backend", "metal", "kernels")
    text = (mlx / below / "utils.h").read_text()
    text = re.sub(r"constant const int64_t (\w+)\[\d\]\)", r"constant const int64_t* \1)", text)
    place = folder() / "overlay" / hashlib.sha256(text.encode()).hexdigest()[:12]
    (place / below).mkdir(parents=True, exist_ok=True)
    for name in ("complex.h", "logging.h"):
        (place / below / name).write_text((HERE / "overlay" / below / name).read_text())
    (place / below / "utils.h").write_text(text)
    return place


def clang(*arguments: str, text: str) -> subprocess.CompletedProcess[str]:
    """Run clang itself on a text."""
    command = [*DRIVER, "clang", *QUIET, *arguments, "-x", "c++", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True)


def library(name: str, source: str, flags: Sequence[str] = ()) -> Path:
    """A shared library of a C++ text, compiled once."""
    return _compiled(name, source, (*BUILT, *flags))


def _compiled(name: str, source: str, flags: tuple[str, ...]) -> Path:
    shim = "".join(path.read_text() for path in sorted((HERE / "include").iterdir()))
    key = hashlib.sha256("\0".join((source, *flags, shim)).encode()).hexdigest()[:20]
    built = folder() / f"{name[:40]}-{key}.so"
    if not built.exists():
        text = folder() / f"{name[:40]}-{key}.{os.getpid()}.cpp"
        text.write_text(source)
        fresh = text.with_suffix(".new")
        command = [*DRIVER, "c++", *QUIET, "-std=c++20", *flags, "-o", str(fresh), str(text)]
        done = subprocess.run(command, capture_output=True, text=True)
        text.unlink()
        if done.returncode:
            raise Refused("the kernel does not compile:\n" + done.stderr[:6000])
        os.replace(fresh, built)
    return built
