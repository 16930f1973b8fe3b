"""Kernels of vqx: one body for Metal, CUDA and the host's C loops, and on which of them it runs here."""

from vqx_kernels.attending import attended
from vqx_kernels.attention import Asked, Layers, Rule, Step, fits, gained, mass, step
from vqx_kernels.bodies import Method
from vqx_kernels.gathering import ARRAYS, gathered, joined, nans, picked
from vqx_kernels.keys import expected, spared
from vqx_kernels.prompts import Observed
from vqx_kernels.replaying import Replayed, Tile, replayed
from vqx_kernels.selection import exchanged, kept, survivors, victim
from vqx_kernels.small import Guard
from vqx_kernels.targets import Target, choose, choose_at_once, describe, targets
from vqx_kernels.tensor import observed, prompt_mass, serves
from vqx_kernels.turning import Turns, turned, turned_together

__all__ = [
    "ARRAYS",
    "Asked",
    "Guard",
    "Layers",
    "Method",
    "Observed",
    "Replayed",
    "Rule",
    "Step",
    "Target",
    "Tile",
    "Turns",
    "attended",
    "choose",
    "choose_at_once",
    "describe",
    "exchanged",
    "expected",
    "fits",
    "gained",
    "gathered",
    "joined",
    "kept",
    "mass",
    "nans",
    "observed",
    "picked",
    "prompt_mass",
    "replayed",
    "serves",
    "spared",
    "step",
    "survivors",
    "targets",
    "turned",
    "turned_together",
    "victim",
]
