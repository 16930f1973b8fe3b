"""CaM by plain loops, from METHODS.md section "cam" (Zhang et al., ICML 2024).

Rows go by age (StreamingLLM), or by the last query's attention (TOVA, every head alone).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Kept(NamedTuple):
    positions: list[int]  # oldest first
    values: list[Array]
    merges: int  # rows that went in
    drops: int  # rows that went and were not merged
    narrowest: float  # least distance of a draw from its probability, or of two scores from each other


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    total = math.fsum(powers)
    return [p / total for p in powers]


def probability(own: float, targets: list[float]) -> float:
    """A over the mean A of the targets, clamped to 0 and 1; a row without targets does not go in."""
    mean = math.fsum(targets) / len(targets) if targets else 0.0
    if mean == 0:
        return 1.0 if own > 0 and targets else 0.0
    return min(own / mean, 1.0)


def cam(
    queries: Array,  # [G, S, D]
    keys: Array,  # [S, D]
    values: Array,  # [S, Dv]
    draws: Array,  # [S], in [0, 1): one for each position
    *,
    budget: int,
    n_sink: int,
    merge_budget: int,
    base: str,  # "age" or "last query", which protects the newest row
    scale: float,
    blocks: list[int],  # lengths of the forwards that the stream is cut into
) -> Kept:
    """True queries, one head: after each forward the rows over the budget go, and are merged, together."""
    queries, keys = np.asarray(queries, dtype=np.float64), np.asarray(keys, dtype=np.float64)
    stored = {p: np.array(row, dtype=np.float64) for p, row in enumerate(values)}
    attention: dict[int, float] = {}
    positions: list[int] = []
    merges = drops = end = 0
    narrowest = math.inf
    for size in blocks:
        start, end = end, end + size
        positions += range(start, end)
        latest: dict[int, float] = {}
        for token in range(start, end):
            visible = [p for p in positions if p <= token]
            latest = dict.fromkeys(positions, 0.0)
            for head in queries:
                share = softmax([float(head[token] @ keys[p]) * scale for p in visible])
                for p, weight in zip(visible, share, strict=True):
                    latest[p] += weight / len(queries)
            for p, weight in latest.items():
                attention[p] = attention.get(p, 0.0) + weight
        free = [p for p in positions if p >= n_sink]
        if base == "last query":
            free = sorted(free[:-1], key=lambda p: latest[p])
        surplus = max(len(positions) - budget, 0)
        gone = sorted(free[:surplus])
        if base == "last query" and surplus and surplus < len(free):
            narrowest = min(narrowest, latest[free[surplus]] - latest[free[surplus - 1]])
        stay = [p for p in positions if p not in gone]
        gains: dict[int, Array] = {}
        for p in gone:
            targets = [q for q in positions if q > p][:merge_budget]
            chance = probability(attention[p], [attention[q] for q in targets])
            narrowest = min(narrowest, abs(chance - draws[p]))
            if draws[p] < chance:
                merges += 1
                for q in targets:
                    gains[q] = gains.get(q, 0.0) + stored[p] / len(targets)
            else:
                drops += 1
        for q, gain in gains.items():
            stored[q] = stored[q] + gain
        positions = stay
    return Kept(positions, [stored[p] for p in positions], merges, drops, narrowest)
