"""The cases of ``vqx_kernels.verify`` on emulated devices: types, widths, groups, rules, many blocks."""

import pytest
from vqx_kernels import probe, verify
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
