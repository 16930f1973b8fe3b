"""R-KV by plain loops, from the paper (arXiv 2505.24133, section 3) and its authors' code."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]


def attention(queries: Array, keys: Array, window: int, kernel: int, group: str) -> list[float]:
    """Of the last queries ``[G, w, D]`` over all rows but the newest ``window``; the others get 0."""
    old, scale = len(keys) - window, 1 / math.sqrt(keys.shape[1])
    shares = [0.0] * old
    for at in range(queries.shape[1]):
        logits = [[float(head[at] @ key) * scale for key in keys[:old]] for head in queries]
        if group == "max":
            logits = [[max(several) for several in zip(*logits, strict=True)]]
        for head_logits in logits:
            for j, share in enumerate(softmax(head_logits)):
                shares[j] += share / (queries.shape[1] * len(logits))
    half = kernel // 2
    pooled = [max(shares[max(j - half, 0) : j + half + 1]) for j in range(old)]
    return pooled + [0.0] * window


def redundancy(keys: Array, threshold: float) -> list[float]:
    """Softmax of the mean cosine of other rows to each; what the newest repeated gets is left out."""
    n = len(keys)
    lengths = [math.sqrt(float(key @ key)) or 1.0 for key in keys]
    total = [0.0] * n
    for i in range(n):
        cosines = [0.0 if i == j else float(keys[i] @ keys[j]) / (lengths[i] * lengths[j]) for j in range(n)]
        similar = [j for j in range(n) if cosines[j] > threshold]
        if similar:
            cosines[similar[-1]] = 0.0
        for j in range(n):
            total[j] += cosines[j] / n
    return softmax(total)


def kept(
    queries: Array,  # [G, T, D]
    keys: Array,  # [T, D]
    *,
    budget: int,
    blocks: list[int],
    n_sink: int = 4,
    window: int = 8,
    kernel: int = 7,
    mix: float = 0.1,
    threshold: float = 0.5,
    group: str = "max",
) -> tuple[list[int], float]:
    """Positions left after forwards of these lengths, and the narrowest gap that decided."""
    rows: list[int] = []
    end, narrowest = 0, math.inf
    for size in blocks:
        rows += range(end, end + size)
        end += size
        surplus = len(rows) - budget
        if surplus <= 0:
            continue
        seen = attention(queries[:, max(end - window, 0) : end], keys[rows], window, kernel, group)
        repeated = redundancy(keys[rows], threshold)
        score = [mix * a - (1 - mix) * r for a, r in zip(seen, repeated, strict=True)]
        unsafe = [j for j in range(len(rows)) if rows[j] >= n_sink and rows[j] < end - window]
        ranked = sorted(unsafe, key=lambda j: score[j])
        gone, spared = ranked[:surplus], ranked[surplus:]
        if spared:
            narrowest = min(narrowest, score[spared[0]] - score[gone[-1]])
        rows = [row for j, row in enumerate(rows) if j not in gone]
    return rows, narrowest
