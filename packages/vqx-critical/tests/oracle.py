"""CriticalKV by plain loops in float64, from algorithm 1 of arXiv 2502.03805."""

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
    queries: Array,  # [H, G, S, D]
    keys: Array,  # [H, S, D]
    values: Array,  # [H, S, Dv]
    projection: Array,  # [hidden, H * G * Dv]
    *,
    budget: int,
    first_stage: float,
    epsilon: float,
    n_sink: int,
    window: int,
    blocks: list[int],
) -> list[tuple[list[int], float]]:
    """For each head the positions kept after the last block, and the narrowest gap that decided."""
    heads, group, _, width = queries.shape
    value_width = values.shape[2]
    answers = []
    for h in range(heads):
        positions: list[int] = []
        narrowest, start = math.inf, 0
        for size in blocks:
            positions += range(start, start + size)
            start += size
            if len(positions) <= budget:
                continue
            asked = range(max(0, start - window), start)
            attention = dict.fromkeys(positions, 0.0)
            for g in range(group):
                for token in asked:
                    seen = [p for p in positions if p <= token]
                    weights = softmax(
                        [float(queries[h, g, token] @ keys[h, p]) / math.sqrt(width) for p in seen]
                    )
                    for p, weight in zip(seen, weights, strict=True):
                        attention[p] += weight / group / len(asked)
            output = {}
            for p in positions:
                norm = 0.0
                for g in range(group):
                    at = (h * group + g) * value_width
                    moved = projection[:, at : at + value_width] @ values[h, p]
                    norm += math.fsum(abs(float(x)) for x in moved) / group
                output[p] = (attention[p] + epsilon) * norm
            safe = [p for p in positions if p < n_sink or p >= start - window]
            free = [p for p in positions if p not in safe]
            chosen = list(safe)
            for scores, upto in ((attention, int(budget * first_stage)), (output, budget)):
                ranked = sorted(free, key=lambda p: (scores[p], p), reverse=True)
                taken = ranked[: max(0, upto - len(chosen))]
                left = ranked[len(taken) :]
                if taken and left:
                    narrowest = min(narrowest, abs(scores[taken[-1]] - scores[left[0]]))
                chosen += taken
                free = [p for p in free if p not in taken]
            positions = sorted(chosen)
        answers.append((positions, narrowest))
    return answers
