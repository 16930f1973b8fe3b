"""H2O by plain loops, from METHODS.md section "h2o" (Zhang et al., 2023, arXiv 2306.14048)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Kept(NamedTuple):
    positions: list[int]  # oldest first
    statistic: Array  # [n], accumulated mass, aligned with positions
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
    recent: int = 0,
    grace: int = 0,
    decay: float = 1.0,
) -> Kept:
    """Token by token, each key standing in for its query over the rows stored before it."""
    keys = np.asarray(keys, dtype=np.float64)
    scale = 1 / math.sqrt(keys.shape[1])
    positions: list[int] = []
    mass: list[float] = []
    narrowest = math.inf
    for token in range(len(keys)):
        if positions:
            share = softmax([float(keys[token] @ keys[p]) * scale for p in positions])
            mass = [m * decay + a for m, a in zip(mass, share, strict=True)]
        mass.append(0.0 if positions else 1.0)
        positions.append(token)
        kept, gap = cut(positions, mass, budget, n_sink, max(recent, grace))
        narrowest = min(narrowest, gap)
        positions = [positions[j] for j in kept]
        mass = [mass[j] for j in kept]
    return Kept(positions, np.array(mass, dtype=np.float64), narrowest)


def paper(
    queries: Array,  # [G, S, D]
    keys: Array,  # [S, D]
    *,
    budget: int,
    n_sink: int = 0,
    recent: int = 0,
    decay: float = 1.0,
    scale: float,
    normalise: str | None = None,  # None or "seen"
    blocks: list[int],  # lengths of the forwards that the stream is cut into
) -> Kept:
    """True queries, block cadence: every query of a block adds its share, then one cut."""
    if normalise not in (None, "seen"):
        raise ValueError(f"normalise {normalise!r} is neither None nor 'seen'")
    queries = np.asarray(queries, dtype=np.float64)
    keys = np.asarray(keys, dtype=np.float64)
    if min(blocks) < 1 or sum(blocks) != len(keys):
        raise ValueError(f"blocks {blocks} do not cut a stream of {len(keys)} tokens")
    positions: list[int] = []
    mass: list[float] = []
    seen: list[int] = []
    narrowest = math.inf
    start = 0
    for size in blocks:
        end = start + size
        positions = positions + list(range(start, end))
        mass = mass + [0.0] * size
        seen = seen + [0] * size
        for token in range(start, end):
            visible = [p for p in positions if p <= token]  # the first rows: the oldest come first
            mass = [m * decay for m in mass]
            for head in queries:
                share = softmax([float(head[token] @ keys[p]) * scale for p in visible])
                for j, a in enumerate(share):
                    mass[j] += a / len(queries)
            for j in range(len(visible)):
                seen[j] += 1
        start = end
        scores = [m / s for m, s in zip(mass, seen, strict=True)] if normalise else mass
        kept, gap = cut(positions, scores, budget, n_sink, recent)
        narrowest = min(narrowest, gap)
        positions = [positions[j] for j in kept]
        mass = [mass[j] for j in kept]
        seen = [seen[j] for j in kept]
    return Kept(positions, np.array(mass, dtype=np.float64), narrowest)
