"""The L2 norm by plain loops, from the paper (arXiv 2406.11430)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def kept(
    keys: Array, *, budget: int, blocks: list[int], n_sink: int = 4, recent: int = 0
) -> tuple[list[int], float]:
    """Positions of keys ``[T, D]`` left after forwards of these lengths, and the narrowest gap of norms."""
    norms = [math.sqrt(math.fsum(x * x for x in key)) for key in keys]
    rows: list[int] = []
    end, narrowest = 0, math.inf
    for size in blocks:
        rows += range(end, end + size)
        end += size
        surplus = len(rows) - budget
        if surplus <= 0:
            continue
        unsafe = [row for row in rows if n_sink <= row < end - recent]
        ranked = sorted(unsafe, key=lambda row: -norms[row])  # stable: of equal norms the oldest goes
        gone, spared = ranked[:surplus], ranked[surplus:]
        if spared and norms[gone[-1]] != norms[spared[0]]:
            narrowest = min(narrowest, norms[gone[-1]] - norms[spared[0]])
        rows = [row for row in rows if row not in gone]
    return rows, narrowest
