"""The host's loops give the bits that stand in the package, which every device has to give."""

import numpy as np
import pytest
from vqx_kernels import host, probe, verify

pytestmark = pytest.mark.skipif(not host.compiler().usable, reason=host.compiler().why)


def test_the_hosts_loops_give_the_expected_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main("host") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("EQUAL: host")
    assert len(lines) == len(verify.WORK) + 1


def test_one_bit_elsewhere_is_a_difference() -> None:
    wanted = probe.expected()
    found = {
        name.partition("/")[2]: array.copy() for name, array in wanted.items() if name.startswith("small/")
    }
    assert not probe.difference("small", found, wanted)
    bits = found["mass"].view(np.uint32)
    bits[0, 0, 5] ^= 1
    assert probe.difference("small", found, wanted) == "1 of 192 numbers of mass differ"
