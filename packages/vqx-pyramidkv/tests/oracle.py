"""PyramidKV by plain loops, from METHODS.md section "pyramidkv" (Cai et al., 2024, 2406.02069)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def line(layers: int, mean: int, beta: Fraction, least: int) -> list[Fraction]:
    """Budgets from 2 mean - min to min = mean / beta, min no less than ``least``, not yet whole numbers."""
    low = max(Fraction(mean) / beta, Fraction(least))
    high = 2 * mean - low
    if layers == 1:
        return [Fraction(mean)]
    return [high - (high - low) * Fraction(number, layers - 1) for number in range(layers)]


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    total = math.fsum(powers)
    return [p / total for p in powers]


def kept(
    queries: Array,  # [G, S, D]
    keys: Array,  # [S, D]
    budget: int,
    n_sink: int,
    window: int,
    kernel: int,
    scale: float,
) -> tuple[list[int], float]:
    """After a prompt: positions kept by one head, and the gap between the last kept and the first to go."""
    n = len(keys)
    seen = [0.0] * (n - window)
    for token in range(n - window, n):
        for head in queries:
            weights = softmax([float(head[token] @ keys[p]) * scale for p in range(token + 1)])
            for j in range(n - window):
                seen[j] += weights[j] / len(queries)
    half = kernel // 2
    pooled = [math.fsum(seen[max(j - half, 0) : j + half + 1]) / kernel for j in range(n - window)]
    ranked = sorted(range(n_sink, n - window), key=lambda j: (pooled[j], j), reverse=True)
    free = budget - n_sink - window
    gap = pooled[ranked[free - 1]] - pooled[ranked[free]]
    return sorted([*range(n_sink), *ranked[:free], *range(n - window, n)]), gap
