"""The cases of ``vqx_kernels.verify`` on emulated devices: types, widths, groups, rules, many blocks."""

import mlx.core as mx
import pytest
from vqx_kernels import gathering, layered, probe, verify
from vqx_kernels.testing import emulated


@pytest.mark.parametrize(
    # one body for both, so that a case runs on one of them
    ("name", "target"),
    [(name, ("metal", "cuda")[number % 2]) for number, name in enumerate(verify.WORK)],
)
def test_an_emulated_device_gives_the_expected_bits(name: str, target: str) -> None:
    with emulated():
        found = verify.computed(target, name)
    assert found
    assert not probe.difference(name, found, probe.expected())


@pytest.mark.parametrize("name", layered.CASES)
def test_launches_for_many_layers_give_what_they_should(name: str) -> None:
    with emulated():
        assert layered.CASES[name]("cuda") <= layered.ERROR


def test_what_stands_behind_picked_rows_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gathering.picked

    def one_late(target: str, arrays: list[mx.array], slots: mx.array, capacity: int) -> list[mx.array]:
        *others, last = real(target, arrays, slots, capacity)
        last[:, :, -1] = mx.nan
        return [*others, last]

    monkeypatch.setattr(gathering, "picked", one_late)
    with emulated():
        assert not layered.picked("cuda") <= layered.ERROR
