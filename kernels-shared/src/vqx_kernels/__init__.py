"""Kernels of vqx: one body for Metal, CUDA and the host's C loops, and on which of them it runs here."""

from vqx_kernels.attention import Asked, Rule, Step, fits, gained, mass, step
from vqx_kernels.bodies import Method
from vqx_kernels.keys import expected, spared
from vqx_kernels.selection import exchanged, kept, survivors, victim
from vqx_kernels.small import Guard
from vqx_kernels.targets import Target, choose, describe, targets
from vqx_kernels.turning import Turns, turned

__all__ = [
    "Asked",
    "Guard",
    "Method",
    "Rule",
    "Step",
    "Target",
    "Turns",
    "choose",
    "describe",
    "exchanged",
    "expected",
    "fits",
    "gained",
    "kept",
    "mass",
    "spared",
    "step",
    "survivors",
    "targets",
    "turned",
    "victim",
]
