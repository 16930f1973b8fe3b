"""TOVA by plain loops, from METHODS.md section "tova" (Oren et al., 2024, arXiv 2401.06104)."""

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
    keys: Array,  # [H, S, D]
    *,
    budget: int,
    n_sink: int = 0,
    heads: str = "each",
    keep_newest: bool = True,
) -> list[Kept]:
    """Token by token: the newest key is the query, over every stored row and itself."""
    keys = np.asarray(keys, dtype=np.float64)
    return paper(
        keys[:, None],
        keys,
        budget=budget,
        n_sink=n_sink,
        heads=heads,
        keep_newest=keep_newest,
        scale=1 / math.sqrt(keys.shape[2]),
        blocks=[1] * keys.shape[1],
    )


def paper(
    queries: Array,  # [H, G, S, D]
    keys: Array,  # [H, S, D]
    *,
    budget: int,
    n_sink: int = 0,
    heads: str = "layer",  # "layer": one kept set by the mean of all heads; "each": by the group's
    keep_newest: bool = True,
    scale: float,
    blocks: list[int],  # lengths of the forwards that the stream is cut into
) -> list[Kept]:
    """Block cadence: the last query of each block ranks every row; one Kept for each KV head."""
    if heads not in ("each", "layer"):
        raise ValueError(f"heads {heads!r} is neither 'each' nor 'layer'")
    queries = np.asarray(queries, dtype=np.float64)
    keys = np.asarray(keys, dtype=np.float64)
    if min(blocks) < 1 or sum(blocks) != keys.shape[1]:
        raise ValueError(f"blocks {blocks} do not cut a stream of {keys.shape[1]} tokens")
    everyone = list(range(len(keys)))
    voters = [everyone] if heads == "layer" else [[h] for h in everyone]
    answers: list[Kept] = []
    for voting in voters:
        kept = _one_set(queries[voting], keys[voting], budget, n_sink, keep_newest, scale, blocks)
        answers.extend([kept] * len(voting))
    return answers


def _one_set(
    queries: Array,  # [V, G, S, D], the KV heads that rank together
    keys: Array,  # [V, S, D]
    budget: int,
    n_sink: int,
    keep_newest: bool,
    scale: float,
    blocks: list[int],
) -> Kept:
    positions: list[int] = []
    narrowest = math.inf
    end = 0
    for size in blocks:
        positions = positions + list(range(end, end + size))
        end += size
        n = len(positions)
        if n > budget:
            scores = [0.0] * n
            for own_queries, own_keys in zip(queries, keys, strict=True):
                for head in own_queries:
                    share = softmax([float(head[end - 1] @ own_keys[p]) * scale for p in positions])
                    for j, a in enumerate(share):
                        scores[j] += a / (queries.shape[0] * queries.shape[1])
            kept, gap = cut(positions, scores, budget, n_sink, 1 if keep_newest else 0)
            narrowest = min(narrowest, gap)
            positions = [positions[j] for j in kept]
    return Kept(positions, np.empty(0, dtype=np.float64), narrowest)
