"""Fusion by plain loops in float64: H2O's mean share (arXiv 2306.14048) beside KeyDiff's (2504.15364)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def unlikeness(keys: Array) -> list[float]:
    """Minus the cosine of each key to the mean of the normalised keys."""
    anchor = np.zeros(keys.shape[1])
    for key in keys:
        anchor += key / math.sqrt(key @ key) / len(keys)
    return [-float(key @ anchor) / math.sqrt(key @ key) / math.sqrt(anchor @ anchor) for key in keys]


def kept(
    queries: Array,
    keys: Array,
    *,
    budget: int,
    blocks: list[int],
    n_sink: int,
    recent: int,
    local: float,
    itself: bool = True,
) -> tuple[list[int], float]:
    """Positions left after forwards of these lengths, and the narrowest gap that decided.

    Queries are ``[G, S, D]``, keys ``[S, D]``.
    """
    rows: list[int] = []
    mass: dict[int, float] = {}
    seen: dict[int, int] = {}
    end, narrowest = 0, math.inf
    for size in blocks:
        new = list(range(end, end + size))
        rows += new
        end += size
        for row in new:
            mass[row] = seen[row] = 0
        for query in new:
            sees = [row for row in rows if row <= query]
            for group in queries:
                logits = [float(group[query] @ keys[row]) / math.sqrt(keys.shape[1]) for row in sees]
                powers = [math.exp(x - max(logits)) for x in logits]
                for row, power in zip(sees, powers, strict=True):
                    mass[row] += power / sum(powers) / len(queries)
            for row in sees:
                seen[row] += 1
        surplus = len(rows) - budget
        if surplus <= 0:
            continue
        unsafe = [row for row in rows if row >= n_sink and row < end - recent]
        by_mean = sorted(unsafe, key=lambda row: (mass[row] / seen[row], row), reverse=True)
        chosen = round(local * (budget - n_sink - recent))
        rest, unlike = by_mean[chosen:], dict(zip(rows, unlikeness(keys[rows]), strict=True))
        if 0 < chosen < len(by_mean):
            first, second = (mass[row] / seen[row] for row in by_mean[chosen - 1 : chosen + 1])
            narrowest = min(narrowest, first - second)
        gone = sorted(rest, key=lambda row: (unlike[row], row))
        if len(gone) > surplus:
            narrowest = min(narrowest, unlike[gone[surplus]] - unlike[gone[surplus - 1]])
        rows = [row for row in rows if row not in gone[:surplus]]
    return rows, narrowest
