"""Bodies as C loops: compiled once, and refused in words where this machine cannot run them."""

from pathlib import Path

import mlx.core as mx
import pytest
from vqx_kernels import attention, host, probe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VQX_CACHE", str(tmp_path))
    attention._launches.cache_clear()
    host._function.cache_clear()
    yield host.cache_folder()
    attention._launches.cache_clear()
    host._function.cache_clear()


def test_a_body_is_compiled_once_for_all_calls_and_processes(folder: Path) -> None:
    first = probe.small("host")
    libraries = sorted(folder.glob("*.so"))
    assert {path.name.partition("-")[0] for path in libraries} == {
        "probe_logits_tops_columns_lowest",
        "survivors",
    }
    made = [path.stat().st_mtime_ns for path in libraries]
    attention._launches.cache_clear()
    host._function.cache_clear()  # as another process would find them
    again = probe.small("host")
    assert [path.stat().st_mtime_ns for path in sorted(folder.glob("*.so"))] == made
    assert all(mx.array_equal(first[name], again[name]) for name in first)


@pytest.mark.filterwarnings("error")
def test_the_oldest_x86_falls_back_and_says_so(folder: Path) -> None:
    if not host.X86:
        flags = (*host.FLAGS, "-DVQX_NO_FMA")  # every other processor that we know of has it
    else:
        flags = tuple("-march=x86-64" if flag.startswith("-march") else flag for flag in host.FLAGS)
    found = host.compiler(flags)
    assert not found.usable
    assert "no fused multiply-add; MLX operations run" in found.why


def test_without_a_compiler_mlx_operations_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_found", lambda: ())
    found = host.compiler.__wrapped__()
    assert not found.usable
    assert "no C++ compiler" in found.why


def test_a_compiler_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    found = host.compiler.__wrapped__()
    assert not found.usable
    assert "/nowhere/c++" in found.why
