"""Test a kernel's Metal and CUDA text on any Linux machine: run it, and try to make it go wrong.

Wants the extra ``testing``, which brings clang as a wheel; nothing of it runs outside tests.
"""

from vqx_kernels.testing.audit import Report, audited
from vqx_kernels.testing.emulator import Conditions, Kernel
from vqx_kernels.testing.places import emulated, recorded
from vqx_kernels.testing.pretended import pretended
from vqx_kernels.testing.toolchain import Refused

__all__ = ["Conditions", "Kernel", "Refused", "Report", "audited", "emulated", "pretended", "recorded"]
