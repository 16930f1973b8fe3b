"""MorphKV by plain loops, from METHODS.md section "morphkv" (Ghadia et al., 2025, 2503.00979)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Kept(NamedTuple):
    positions: list[int]  # oldest first
    statistic: Array  # [0], nothing accumulates
    narrowest: float  # least non-zero gap between an evicted and a spared score; inf without one


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    total = math.fsum(powers)
    return [p / total for p in powers]


def cut(
    positions: list[int], scores: list[float], budget: int, n_sink: int, recent: int
) -> tuple[list[int], float]:
    """Indices that stay once the least unprotected scores are gone, and the narrowest gap."""
    n = len(positions)
    surplus = max(n - budget, 0)
    unsafe = [j for j in range(n) if positions[j] >= n_sink and j < n - recent]
    if len(unsafe) < surplus:
        raise ValueError("the protected rows alone exceed the budget")
    ranked = sorted(unsafe, key=lambda j: scores[j])  # stable: of equal scores the oldest goes
    victims, spared = ranked[:surplus], ranked[surplus:]
    gaps = [scores[b] - scores[a] for a in victims for b in spared if scores[b] != scores[a]]
    return [j for j in range(n) if j not in victims], min(gaps, default=math.inf)


def adapted(
    keys: Array,  # [S, D]
    *,
    budget: int,
    n_sink: int = 0,
    window: int = 8,
) -> Kept:
    """Token by token: the newest stored keys are the queries, over every stored row."""
    keys = np.asarray(keys, dtype=np.float64)
    scale = 1 / math.sqrt(keys.shape[1])
    positions: list[int] = []
    narrowest = math.inf
    for token in range(len(keys)):
        positions.append(token)
        n = len(positions)
        if n > budget:
            relevance = [0.0] * n
            for query in positions[-window:]:
                share = softmax([float(keys[query] @ keys[p]) * scale for p in positions])
                for j, a in enumerate(share):
                    relevance[j] += a / window
            kept, gap = cut(positions, relevance, budget, n_sink, window)
            narrowest = min(narrowest, gap)
            positions = [positions[j] for j in kept]
    return Kept(positions, np.empty(0, dtype=np.float64), narrowest)


def paper(
    queries: Array,  # [G, S, D]
    keys: Array,  # [S, D]
    *,
    budget: int,
    window: int,
    fuse: str,  # "sum" or "max", over the window
    group: str,  # "max" of the heads' weights for each query and row, or "logits" summed first
    scale: float,
    blocks: list[int],  # lengths of the forwards that the stream is cut into
) -> Kept:
    """True queries, block cadence: the stream's last queries rank the rows before the window."""
    if fuse not in ("sum", "max") or group not in ("max", "logits"):
        raise ValueError(f"fuse {fuse!r} or group {group!r} is unknown")
    queries = np.asarray(queries, dtype=np.float64)
    keys = np.asarray(keys, dtype=np.float64)
    if min(blocks) < 1 or sum(blocks) != len(keys):
        raise ValueError(f"blocks {blocks} do not cut a stream of {len(keys)} tokens")
    if not 1 <= window <= budget:
        raise ValueError(f"window {window} is not between 1 and the budget {budget}")
    positions: list[int] = []
    narrowest = math.inf
    end = 0
    for size in blocks:
        positions = positions + list(range(end, end + size))
        end += size
        n = len(positions)
        if n > budget:
            old = positions[: n - window]
            relevance = [0.0] * len(old)
            for token in range(end - window, end):
                heads = [[float(head[token] @ keys[p]) * scale for p in old] for head in queries]
                if group == "logits":
                    share = softmax([math.fsum(column) for column in zip(*heads, strict=True)])
                else:
                    weights = [softmax(logits) for logits in heads]
                    share = [max(column) for column in zip(*weights, strict=True)]
                for j, a in enumerate(share):
                    relevance[j] = relevance[j] + a if fuse == "sum" else max(relevance[j], a)
            kept, gap = cut(old, relevance, budget - window, 0, 0)
            narrowest = min(narrowest, gap)
            positions = [old[j] for j in kept] + positions[n - window :]
    return Kept(positions, np.empty(0, dtype=np.float64), narrowest)
