"""Keyformer by plain loops, from METHODS.md section "keyformer" (Adnan et al. 2024, 2403.09054)."""

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


def ramp(t: int, tau_init: float, tau_end: float, anneal_steps: int) -> float:
    """Linear from `tau_init` to `tau_end`, then held; no steps: `tau_init` throughout."""
    return tau_init + min(t, anneal_steps) * (tau_end - tau_init) / max(anneal_steps, 1)


def adapted(
    keys: Array,  # [S, D]
    noise: Array,  # [S], one Gumbel draw a position
    *,
    budget: int,
    n_sink: int = 0,
    recent: int = 0,
    tau_init: float = 1.0,
    tau_end: float = 2.0,
    anneal_steps: int = 256,
    tau: float | None = None,  # constant, wins over the ramp
) -> Kept:
    """noise="rank": clean mass; the least mass + tau * noise goes, tau at the incoming position."""
    keys = np.asarray(keys, dtype=np.float64)
    scale = 1 / math.sqrt(keys.shape[1])
    positions: list[int] = []
    mass: list[float] = []
    narrowest = math.inf
    for token in range(len(keys)):
        if positions:
            share = softmax([float(keys[token] @ keys[p]) * scale for p in positions])
            mass = [m + a for m, a in zip(mass, share, strict=True)]
        mass.append(0.0 if positions else 1.0)
        positions.append(token)
        now = ramp(token, tau_init, tau_end, anneal_steps) if tau is None else tau
        scores = [m + now * float(noise[p]) for m, p in zip(mass, positions, strict=True)]
        kept, gap = cut(positions, scores, budget, n_sink, recent)
        narrowest = min(narrowest, gap)
        positions = [positions[j] for j in kept]
        mass = [mass[j] for j in kept]
    return Kept(positions, np.array(mass, dtype=np.float64), narrowest)


def paper(
    queries: Array,  # [G, S, D]
    keys: Array,  # [S, D]
    noise: Array,  # [S], one Gumbel draw a position
    *,
    budget: int,
    n_sink: int = 0,
    recent: int = 0,
    tau_init: float,
    tau_end: float,
    anneal_steps: int,
    prompt_length: int,
    scale: float,
    blocks: list[int],  # lengths of the forwards that the stream is cut into
) -> Kept:
    """noise="logit": the mass adds up softmax((x + noise) / tau); one cut after each block."""
    queries = np.asarray(queries, dtype=np.float64)
    keys = np.asarray(keys, dtype=np.float64)
    if min(blocks) < 1 or sum(blocks) != len(keys):
        raise ValueError(f"blocks {blocks} do not cut a stream of {len(keys)} tokens")
    positions: list[int] = []
    mass: list[float] = []
    narrowest = math.inf
    start = 0
    for size in blocks:
        end = start + size
        positions = positions + list(range(start, end))
        mass = mass + [0.0] * size
        for token in range(start, end):
            tau = ramp(max(token - prompt_length, 0), tau_init, tau_end, anneal_steps)
            visible = [p for p in positions if p <= token]  # the first rows: the oldest come first
            for head in queries:
                x = [float(head[token] @ keys[p]) * scale + float(noise[p]) for p in visible]
                for j, a in enumerate(softmax([noisy / tau for noisy in x])):
                    mass[j] += a / len(queries)
        start = end
        kept, gap = cut(positions, mass, budget, n_sink, recent)
        narrowest = min(narrowest, gap)
        positions = [positions[j] for j in kept]
        mass = [mass[j] for j in kept]
    return Kept(positions, np.array(mass, dtype=np.float64), narrowest)
