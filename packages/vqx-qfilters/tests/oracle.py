"""Q-Filters by plain loops, from the paper (arXiv 2503.02812, section 3) and its authors' script."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def direction(queries: Array) -> Array:
    """Of one key head's queries ``[G, S, D]``: away from most queries, along their first singular vector."""
    total = np.zeros(queries.shape[2])
    for rows in queries:
        u, _, vh = np.linalg.svd(rows)
        most = sum(1 for x in u[:, 0] if x > 0) > len(rows) / 2
        total += -vh[0] if most else vh[0]
    return total / len(queries)


def kept(
    keys: Array, away: Array, *, budget: int, blocks: list[int], n_sink: int = 4, recent: int = 0
) -> tuple[list[int], float]:
    """Positions of keys ``[T, D]`` left after forwards of these lengths, and the narrowest gap."""
    along = [math.fsum(float(x) * float(y) for x, y in zip(key, away, strict=True)) for key in keys]
    rows: list[int] = []
    end, narrowest = 0, math.inf
    for size in blocks:
        rows += range(end, end + size)
        end += size
        surplus = len(rows) - budget
        if surplus <= 0:
            continue
        unsafe = [row for row in rows if n_sink <= row < end - recent]
        ranked = sorted(unsafe, key=lambda row: -along[row])  # stable: of equals the oldest goes
        gone, spared = ranked[:surplus], ranked[surplus:]
        if spared and along[gone[-1]] != along[spared[0]]:
            narrowest = min(narrowest, along[gone[-1]] - along[spared[0]])
        rows = [row for row in rows if row not in gone]
    return rows, narrowest
