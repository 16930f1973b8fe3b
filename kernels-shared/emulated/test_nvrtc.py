"""NVIDIA's own compiler, which needs no GPU: what it makes of our texts, and where that is stored."""

import ctypes
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from vqx_kernels import attending, kernel, layered, nvrtc, tensor, verify
from vqx_kernels.bodies import compose
from vqx_kernels.testing import pretended


def compiler(architecture: str) -> nvrtc.Compiler:
    spec: Any = find_spec("nvidia")
    (home,) = (path for folder in spec.submodule_search_locations if (path := Path(folder, "cu13")).exists())
    library = next((home / "lib").glob("libnvrtc.so.*"))
    return nvrtc.Compiler(ctypes.CDLL(str(library)), architecture, (str(home / "include"),))


def text(*what: Any) -> tuple[str, str]:
    """The text that MLX generates of a kernel, and the kernel's name in it."""
    told = kernel.texts(*what[:4])
    return nvrtc.generated(told, what[2], what[4]), f"mlx::core::cu::custom_kernel_{told['name']}"


def asked_by(work: Callable[[], Any]) -> set[tuple[Any, ...]]:
    with pretended() as asked:
        work()
    return asked


CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(work, "cuda") for name, work in {**verify.WORK, **layered.CASES}.items()},
    **{name: partial(tensor.apart, "cuda", case=case) for name, case in tensor.CASES.items()},
    **{name: partial(attending.apart, "cuda", case=case) for name, case in attending.CASES.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_the_compiler_takes_the_text(name: str) -> None:
    hopper = compiler("sm_90a")
    asked = asked_by(CASES[name])
    assert asked
    for what in asked:
        assert hopper.compiled(*text(*what)) is not None, what[1].name


OTHERS = [("sm_75", name) for name in ("small", "bfloat", "exchange", "rows picked")]  # no tensor cores
OTHERS += [
    (each, name) for each in ("sm_80", "sm_89", "sm_120a") for name in ("small", "tensor cores, bfloat")
]


@pytest.mark.parametrize(("architecture", "name"), OTHERS)
def test_it_takes_the_text_for_other_gpus(architecture: str, name: str) -> None:
    for what in asked_by(CASES[name]):
        assert compiler(architecture).compiled(*text(*what)) is not None, what[1].name


def assembly(source: str, name: str, contract: bool) -> str:
    """PTX for Hopper; what only tells the two modes apart is taken out."""
    found = compiler("compute_90a").compiled(source, name, f"--fmad={str(contract).lower()}")
    assert found is not None
    return re.sub(r"\b(mul|add|sub)\.rn\.f32", r"\1.f32", found[0].decode())


@pytest.mark.parametrize("name", ["half", "window", "fading"])
def test_it_finds_nothing_to_contract(name: str) -> None:
    for what in asked_by(CASES[name]):
        both = [assembly(*text(*what), contract) for contract in (True, False)]
        assert both[0] == both[1], what[1].name


def test_a_product_that_feeds_a_sum_would_be_found() -> None:
    right, wrong = "vqx_fma(each, shares[s], gained)", "each * shares[s] + gained"
    texts = [text(*what) for what in asked_by(CASES["half"])]
    changed = [(source.replace(right, wrong), name) for source, name in texts if right in source]
    assert changed
    for source, name in changed:
        assert assembly(source, name, True) != assembly(source, name, False)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("MLX_PTX_CACHE_DIR", str(tmp_path / "ptx"))
    monkeypatch.setattr(nvrtc, "found", lambda: compiler("sm_80"))
    return kernel.texts("cuda", compose(("survivors",)), (mx.float32, mx.int32, mx.int32), ())


TYPES = (mx.float32, mx.int32, mx.int32), (mx.bool_,)


def test_what_is_compiled_is_stored_where_mlx_looks(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = nvrtc.stored(told, *TYPES)
    assert "sm_80, NVRTC 13." in made["header"]
    (code,) = (tmp_path / "ptx").glob("*.ptx")
    assert code.stem == f"custom_kernel_{told['name']}_{nvrtc._hash(nvrtc.generated(made, *TYPES)):x}"
    assert code.read_bytes().startswith(b"\x7fELF")
    name, tab, mangled = code.with_suffix(".txt").read_text().partition("\t")
    assert (name, tab) == (f"mlx::core::cu::custom_kernel_{told['name']}", "\t")
    assert mangled.strip().encode() in code.read_bytes()
    assert len([*(tmp_path / "ptx").iterdir()]) == 2

    def compiled(*_: Any) -> None:
        raise AssertionError("it is there")

    monkeypatch.setattr(nvrtc.Compiler, "compiled", compiled)
    assert nvrtc.stored(told, *TYPES) == made


def test_a_text_is_named_as_the_standard_library_hashes_it() -> None:
    """As a program of two lines prints it, by g++ 12."""
    assert nvrtc._hash("hello world\n abc") == 0xB0EC4448ECD9CF2


def test_what_the_compiler_refuses_is_left_to_mlx(told: dict[str, Any], tmp_path: Path) -> None:
    nvrtc.stored({**told, "source": "no text of a kernel"}, *TYPES)
    assert not (tmp_path / "ptx").exists()


def test_where_nothing_can_be_stored_mlx_compiles(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLX_PTX_CACHE_DIR", str(tmp_path / "file"))
    assert nvrtc.stored(told, *TYPES)["source"] == told["source"]


def test_without_the_compiler_nothing_changes(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert nvrtc.found() is None, "MLX on a CPU has loaded none"
    assert nvrtc.stored(told, *TYPES) is told
