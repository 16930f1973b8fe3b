"""ChunkKV by plain loops, from METHODS.md section "chunkkv" (Liu et al., 2025, 2502.00299).

The base is the attention of the last ``window`` queries, or the mass accumulated over all queries (H2O).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Kept(NamedTuple):
    positions: list[int]  # oldest first
    narrowest: float  # least gap between the scores of an evicted and a spared chunk; inf without one


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    total = math.fsum(powers)
    return [p / total for p in powers]


def chunked(positions: list[int], scores: list[float], free: list[bool], chunk: int) -> list[float]:
    """For each row the mean score of the rows of its chunk that are free to go."""
    means = []
    for position in positions:
        together = [
            score
            for p, score, may_go in zip(positions, scores, free, strict=True)
            if may_go and p // chunk == position // chunk
        ]
        means.append(math.fsum(together) / len(together) if together else 0.0)
    return means


def chunkkv(
    queries: Array,  # [H, G, S, D]
    keys: Array,  # [H, S, D]
    *,
    budget: int,
    n_sink: int,
    window: int,  # also the newest rows that are safe
    chunk: int,
    heads: str,  # "each" or "layer"
    base: str,  # "window" or "mass"
    scale: float,
    blocks: list[int],  # lengths of the forwards that the stream is cut into
) -> list[Kept]:
    """After each forward the chunks are ranked: one answer a head."""
    queries, keys = (np.asarray(array, dtype=np.float64) for array in (queries, keys))
    positions: list[list[int]] = [[] for _ in keys]
    mass: list[dict[int, float]] = [{} for _ in keys]
    narrowest = [math.inf for _ in keys]
    end = 0
    for size in blocks:
        start, end = end, end + size
        scores = []
        for h, held in enumerate(positions):
            held.extend(range(start, end))
            latest: dict[int, float] = {}
            for token in range(max(end - window, 0) if base == "window" else start, end):
                visible = [p for p in held if p <= token]
                for head in queries[h]:
                    share = softmax([float(head[token] @ keys[h][p]) * scale for p in visible])
                    for p, weight in zip(visible, share, strict=True):
                        latest[p] = latest.get(p, 0.0) + weight / len(queries[h])
            for p, weight in latest.items():
                mass[h][p] = mass[h].get(p, 0.0) + weight
            free = [n_sink <= p < end - window for p in held]
            gathered = mass[h] if base == "mass" else latest
            scores.append(chunked(held, [gathered.get(p, 0.0) for p in held], free, chunk))
        if heads == "layer":
            scores = [[math.fsum(column) / len(scores) for column in zip(*scores, strict=True)]] * len(scores)
        for h, held in enumerate(positions):
            n = len(held)
            unsafe = [j for j in range(n) if n_sink <= held[j] < end - window]
            ranked = sorted(unsafe, key=lambda j: scores[h][j])  # stable: of one chunk the oldest goes
            victims, spared = ranked[: max(n - budget, 0)], ranked[max(n - budget, 0) :]
            pairs = [(a, b) for a in victims for b in spared if held[a] // chunk != held[b] // chunk]
            narrowest[h] = min([narrowest[h], *(scores[h][b] - scores[h][a] for a, b in pairs)])
            positions[h] = [held[j] for j in range(n) if j not in victims]
    return [Kept(held, gap) for held, gap in zip(positions, narrowest, strict=True)]
