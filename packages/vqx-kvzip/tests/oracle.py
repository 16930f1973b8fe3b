"""KVzip by plain loops in float64, from section 3 of arXiv 2505.23416, for one key-value head."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def greatest(
    queries: Array,  # [G, Q, D], of the tokens that repeat a part
    keys: Array,  # [T + Q, D], of the context, then of those tokens
    *,
    start: int,
    end: int,
    n_sink: int,
) -> list[float]:
    """For context rows ``start`` to ``end - 1`` the greatest weight over all repeating queries."""
    length = queries.shape[1]
    context = len(keys) - length
    best = [0.0] * (end - start)
    for head in queries:
        for i in range(length):
            sinks = list(range(min(n_sink, start)))
            rows = sinks + list(range(start, end)) + list(range(context, context + i + 1))
            logits = [float(head[i] @ keys[row]) / math.sqrt(keys.shape[1]) for row in rows]
            top = max(logits)
            total = math.fsum(math.exp(x - top) for x in logits)
            for j in range(start, end):
                weight = math.exp(logits[len(sinks) + j - start] - top) / total
                best[j - start] = max(best[j - start], weight)
    return best


def kept(scores: list[float], budget: int, n_sink: int) -> tuple[list[int], float]:
    """The positions that stay, and the gap between the last that stays and the first that goes."""
    order = sorted(range(n_sink, len(scores)), key=lambda row: (scores[row], row), reverse=True)
    stay, go = order[: budget - n_sink], order[budget - n_sink :]
    gap = min(scores[row] for row in stay) - max(scores[row] for row in go)
    return sorted([*range(n_sink), *stay]), gap
