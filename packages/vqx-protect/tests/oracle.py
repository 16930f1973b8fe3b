"""Protected spans around accumulated attention, by plain loops in float64 (arXiv 2510.00231)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    return [p / math.fsum(powers) for p in powers]


def kept(
    queries: Array,  # [G, S, D]
    keys: Array,  # [S, D]
    *,
    budget: int,
    n_sink: int,
    recent: int,
    spans: list[tuple[int, int]],
    share: bool,
    blocks: list[int],
) -> tuple[list[int], float]:
    """Positions kept after the last block, and the narrowest gap between unequal scores that decided."""
    scale, narrowest = 1 / math.sqrt(keys.shape[1]), math.inf
    positions: list[int] = []
    mass: dict[int, float] = {}
    start = 0
    for size in blocks:
        for token in range(start, start + size):
            positions.append(token)
            mass[token] = 0.0
            for head in queries:
                weights = softmax([float(head[token] @ keys[p]) * scale for p in positions])
                for p, weight in zip(positions, weights, strict=True):
                    mass[p] += weight / len(queries)
        start += size
        safe = {p for p in positions if p < n_sink or p >= start - recent}
        for first, end in spans:
            inside = [p for p in positions if first <= p < end]
            length = max(0, min(end, start) - first)
            wanted = len(inside)
            if share:
                wanted = (budget - n_sink - recent) * length // start
            best = sorted(inside, key=lambda p: (mass[p], p), reverse=True)
            safe |= set(best[:wanted])
            for p in best[:wanted]:
                narrowest = min([narrowest, *(mass[p] - mass[q] for q in best[wanted:])])
        free = sorted((p for p in positions if p not in safe), key=lambda p: (mass[p], p))
        surplus = max(len(positions) - budget, 0)
        for p in free[:surplus]:
            narrowest = min([narrowest, *(mass[q] - mass[p] for q in free[surplus:])])
        positions = [p for p in positions if p not in free[:surplus]]
    return positions, narrowest
