"""Ada-KV around the attention of the latest queries, by plain loops in float64 (arXiv 2407.11550)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Row = tuple[int, int]  # head, position


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    return [p / math.fsum(powers) for p in powers]


def attention(queries: Array, keys: Array, rows: list[int], asked: range) -> dict[int, float]:
    """Mean weight of each row over the group and over the queries asked."""
    scores = dict.fromkeys(rows, 0.0)
    for head in queries:
        for token in asked:
            seen = [p for p in rows if p <= token]
            weights = softmax([float(head[token] @ keys[p]) / math.sqrt(keys.shape[1]) for p in seen])
            for p, weight in zip(seen, weights, strict=True):
                scores[p] += weight / len(queries) / len(asked)
    return scores


def kept(
    queries: Array,  # [H, G, S, D]
    keys: Array,  # [H, S, D]
    *,
    budget: int,
    floor: float,
    n_sink: int,
    window: int,
    blocks: list[int],
) -> tuple[list[set[int]], float]:
    """For each head the positions kept after the last block, and the narrowest gap that decided."""
    heads, narrowest, start = len(keys), math.inf, 0
    rows: list[list[int]] = [[] for _ in range(heads)]
    for size in blocks:
        for held in rows:
            held += range(start, start + size)
        start += size
        if sum(map(len, rows)) <= budget * heads:
            continue
        stay: list[Row] = []
        free: list[tuple[float, int, int]] = []
        for h, held in enumerate(rows):
            score = attention(queries[h], keys[h], held, range(max(0, start - window), start))
            safe = [p for p in held if p < n_sink or p >= start - window]
            best = sorted((p for p in held if p not in safe), key=lambda p: (score[p], p), reverse=True)
            wanted = max(int(floor * budget) - len(safe), 0)
            if best[:wanted] and best[wanted:]:
                narrowest = min(narrowest, score[best[wanted - 1]] - score[best[wanted]])
            stay += [(h, p) for p in safe + best[:wanted]]
            free += [(score[p], p, h) for p in best[wanted:]]
        free.sort(reverse=True)
        room = budget * heads - len(stay)
        if free[:room] and free[room:]:
            narrowest = min(narrowest, free[room - 1][0] - free[room][0])
        stay += [(h, p) for _, p, h in free[:room]]
        rows = [sorted(p for head, p in stay if head == h) for h in range(heads)]
    return [set(held) for held in rows], narrowest
