"""KeyDiff by plain loops, from the paper (arXiv 2504.15364, section 3)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def cosine(a: Array, b: Array) -> float:
    return float(a @ b) / (math.sqrt(a @ a) * math.sqrt(b @ b))


def scores(keys: Array) -> list[float]:
    """Of keys ``[n, D]``: minus the cosine to the mean of the normalised keys."""
    anchor = np.zeros(keys.shape[1])
    for key in keys:
        anchor += key / math.sqrt(key @ key) / len(keys)
    return [-cosine(key, anchor) for key in keys]


def kept(
    keys: Array, *, budget: int, blocks: list[int], n_sink: int = 4, recent: int = 0
) -> tuple[list[int], float]:
    """Positions left after forwards of these lengths, and the narrowest gap that decided."""
    rows: list[int] = []
    end, narrowest = 0, math.inf
    for size in blocks:
        rows += range(end, end + size)
        end += size
        surplus = len(rows) - budget
        if surplus <= 0:
            continue
        found = scores(keys[rows])
        unsafe = [j for j in range(len(rows)) if rows[j] >= n_sink and rows[j] < end - recent]
        ranked = sorted(unsafe, key=lambda j: found[j])  # stable: of equal scores the oldest goes
        gone, spared = ranked[:surplus], ranked[surplus:]
        if spared:
            narrowest = min(narrowest, found[spared[0]] - found[gone[-1]])
        rows = [row for j, row in enumerate(rows) if j not in gone]
    return rows, narrowest
