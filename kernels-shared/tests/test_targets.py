"""The target that runs is one that is there, and what was asked for by name is never replaced in silence."""

from collections.abc import Callable
from types import SimpleNamespace

import mlx.core as mx
import pytest
from vqx_kernels import Target, attending, choose, describe, host, nvrtc, probe, targets, tensor
from vqx_kernels.targets import _choose

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has what a test says."""

    def have(
        *, metal: bool = False, cuda: bool = False, compiler: bool = False, wrong: str = "", slow: str = ""
    ) -> None:
        _choose.cache_clear()
        monkeypatch.delenv("VQX_DEVICE", raising=False)
        monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
        monkeypatch.setattr(mx.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(host, "compiler", lambda: host.Compiler((), compiler, "what was found"))
        monkeypatch.setattr(probe, "wrong", lambda target: wrong)
        monkeypatch.setattr(tensor, "wrong", lambda target: slow)
        gpu = SimpleNamespace(type=mx.DeviceType.gpu if metal or cuda else mx.DeviceType.cpu)
        monkeypatch.setattr(mx, "default_device", lambda: gpu)

    yield have
    _choose.cache_clear()


def test_every_target_says_what_was_found(machine: Machine) -> None:
    machine(cuda=True)
    found = {target.name: target.available for target in targets()}
    assert found == {"reference": True, "host": False, "metal": False, "cuda": True}
    assert all(isinstance(target, Target) and target.why for target in targets())


def test_kernels_run_on_the_gpu_that_mlx_uses(machine: Machine) -> None:
    machine(cuda=True)
    assert choose().name == "cuda"


def test_a_gpu_that_computes_other_bits_is_not_used_and_says_so(machine: Machine) -> None:
    machine(metal=True, wrong="2 of 64 scores differ")
    assert choose().name == "reference"
    assert "2 of 64 scores differ" in next(t.why for t in targets() if t.name == "metal")


def test_a_gpu_without_tensor_cores_is_used_and_says_so(machine: Machine) -> None:
    machine(cuda=True, slow="they do not run")
    assert choose().name == "cuda"
    assert choose().why.endswith("no tensor cores for prompts: they do not run")


def test_it_is_said_who_compiles(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(cuda=True)
    assert "compiled by MLX in every process" in choose().why
    compiler = nvrtc.Compiler(None, "sm_90a", ())
    monkeypatch.setattr(nvrtc.Compiler, "told", lambda self: f"{self.architecture}, NVRTC 13.0")
    monkeypatch.setattr(nvrtc, "found", lambda: compiler)
    machine(cuda=True)
    assert "compiled once, for sm_90a, NVRTC 13.0" in choose().why


@pytest.mark.parametrize("off", ["", "it does not run"])
def test_a_token_whose_attention_stays_mlxs_is_told(
    off: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(cuda=True)
    monkeypatch.setattr(attending, "wrong", lambda target: off)
    assert any("attention is MLX's" in line for line in describe()) == bool(off)


def test_on_a_cpu_the_reference_runs_unless_its_loops_are_asked_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(compiler=True)
    assert choose().name == "reference"
    monkeypatch.setenv("VQX_DEVICE", "host")
    assert choose().name == "host"


def test_the_environment_forces_the_reference(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(metal=True)
    monkeypatch.setenv("VQX_DEVICE", "reference")
    assert choose().name == "reference"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("tpu", "choose one of reference, host, metal, cuda"),
        ("metal", "no Metal device"),
        ("host", "what was found"),
    ],
)
def test_what_cannot_run_is_refused_in_words(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, asked: str, says: str
) -> None:
    machine(cuda=True)
    monkeypatch.setenv("VQX_DEVICE", asked)
    with pytest.raises(ValueError, match=says):
        choose()
