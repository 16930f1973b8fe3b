"""The target that runs is one that is there, and what was asked for by name is never replaced in silence."""

import mlx.core as mx
import pytest
from vqx_kernels import Target, choose, targets


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine that has what a test says."""

    def have(*, metal: bool = False, cuda: bool = False) -> None:
        monkeypatch.delenv("VQX_DEVICE", raising=False)
        monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
        monkeypatch.setattr(mx.cuda, "is_available", lambda: cuda)

    return have


def test_every_target_says_what_was_found(machine):
    machine(cuda=True)
    assert {t.name: t.available for t in targets()} == {"reference": True, "metal": False, "cuda": True}
    assert all(isinstance(t, Target) and t.why for t in targets())


def test_a_kernel_runs_on_the_device_it_was_built_for(machine):
    machine(cuda=True)
    assert choose(("metal", "cuda")).name == "cuda"


def test_without_a_fitting_device_the_reference_runs(machine):
    machine(cuda=True)
    assert choose(("metal",)).name == "reference"


def test_the_environment_forces_the_reference(machine, monkeypatch):
    machine(metal=True)
    monkeypatch.setenv("VQX_DEVICE", "reference")
    assert choose(("metal",)).name == "reference"


@pytest.mark.parametrize(
    ("asked", "built", "says"),
    [
        ("tpu", ("metal",), "choose one of reference, metal, cuda"),
        ("metal", ("metal",), "no Metal device"),
        ("cuda", ("metal",), "built for metal"),
    ],
)
def test_what_cannot_run_is_refused_in_words(machine, monkeypatch, asked, built, says):
    machine(cuda=True)
    monkeypatch.setenv("VQX_DEVICE", asked)
    with pytest.raises(ValueError, match=says):
        choose(built)
