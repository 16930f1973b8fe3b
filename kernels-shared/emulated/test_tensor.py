"""Tensor cores on an emulated device: where a warp's numbers stand, and what they sum up to."""

import pytest
from vqx_kernels import prompts, tensor
from vqx_kernels.testing import Conditions, audited, emulated


@pytest.mark.parametrize("name", tensor.CASES)
def test_a_prompts_mass_is_that_of_float64(name: str) -> None:
    with emulated():
        assert tensor.apart("cuda", tensor.CASES[name]) < 2e-6  # float32 sums, as the emulated warp has them


def test_no_order_of_threads_and_no_memory_changes_a_bit() -> None:
    case = tensor.CASES["tensor cores, fading"]
    asked, noise, temperature = tensor.drawn(case)

    def call(target: str) -> None:
        prompts.prompt_mass(
            target, asked, tensor.CASES["tensor cores, fading"].rule, noise=noise, temperature=temperature
        )

    varied = Conditions(order="reverse"), Conditions(order="random", seed=3), Conditions(poison=0)
    report = audited(call, racing=False, targets=("cuda",), under=varied)
    assert report.launches == 2
    assert not report.found
