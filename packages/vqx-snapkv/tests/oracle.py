"""SnapKV by plain loops, from METHODS.md section "snapkv" (Li et al., 2024, 2404.14469)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Kept(NamedTuple):
    positions: list[int]  # oldest first
    narrowest: float  # least non-zero gap between an evicted and a spared score; inf without one


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    total = math.fsum(powers)
    return [p / total for p in powers]


def pooled(scores: list[float], kernel: int, pool: str | None) -> list[float]:
    if pool is None:
        return scores
    half, n = kernel // 2, len(scores)
    around = [[scores[i] for i in range(j - half, j + half + 1) if 0 <= i < n] for j in range(n)]
    return [math.fsum(some) / kernel if pool == "mean" else max(some) for some in around]


def cut(
    positions: list[int], scores: list[float], budget: int, n_sink: int, window: int
) -> tuple[list[int], float]:
    """Positions that stay once the least unprotected scores are gone, and the narrowest gap."""
    n = len(positions)
    unsafe = [j for j in range(n) if positions[j] >= n_sink and j < n - window]
    ranked = sorted(unsafe, key=lambda j: scores[j])  # stable: of equal scores the oldest goes
    victims, spared = ranked[: n - budget], ranked[n - budget :]
    gaps = [scores[b] - scores[a] for a in victims for b in spared if scores[b] != scores[a]]
    return [positions[j] for j in range(n) if j not in victims], min(gaps, default=math.inf)


def snapkv(
    queries: Array,  # [H, G, S, D]
    keys: Array,  # [H, S, D]
    *,
    budget: int,
    n_sink: int,
    window: int,
    kernel: int,
    pool: str | None,
    group: str,  # "mean" or "max" of the heads' weights for each query and row
    heads: str,  # "each" or "layer"
    scale: float,
    blocks: list[int],  # lengths of the forwards that the stream is cut into
) -> list[Kept]:
    """After each forward the last ``window`` queries rank the rows before them: one answer a head."""
    queries, keys = (np.asarray(array, dtype=np.float64) for array in (queries, keys))
    positions: list[list[int]] = [[] for _ in keys]
    narrowest = [math.inf for _ in keys]
    end = 0
    for size in blocks:
        for held in positions:
            held.extend(range(end, end + size))
        end += size
        if len(positions[0]) <= budget:
            continue
        scores = []
        for h, held in enumerate(positions):
            seen = [0.0] * len(held)
            for token in range(max(end - window, 0), end):
                visible = [p for p in held if p <= token]
                weights = [
                    softmax([float(q[token] @ keys[h][p]) * scale for p in visible]) for q in queries[h]
                ]
                for j, column in enumerate(zip(*weights, strict=True)):
                    seen[j] += max(column) if group == "max" else math.fsum(column) / len(column)
            before = seen[: max(len(held) - window, 0)]
            scores.append(pooled(before, kernel, pool) + [0.0] * min(window, len(held)))
        if heads == "layer":
            scores = [[math.fsum(column) / len(scores) for column in zip(*scores, strict=True)]] * len(scores)
        for h, held in enumerate(positions):
            positions[h], gap = cut(held, scores[h], budget, n_sink, window)
            narrowest[h] = min(narrowest[h], gap)
    return [Kept(held, gap) for held, gap in zip(positions, narrowest, strict=True)]
