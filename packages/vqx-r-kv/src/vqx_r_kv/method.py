"""R-KV: keep the rows that the latest queries attend to and whose keys do not repeat those of others.

Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models", 2025, arXiv 2505.24133,
section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vqx import Held, LayerInfo, Method, Scorer, kernels
from vqx.norms import unit
from vqx.options import at_least, one_of, room_beside, share
from vqx.pooling import smoothed
from vqx.ranking import library

TILE = 2**23
"""Cosines held at once (32 MiB of float32)."""


@dataclass(frozen=True, kw_only=True)
class RKVConfig:
    """Options of R-KV; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows, values outside those listed.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    window: int = 8
    """Latest queries, whose attention over the rows before them counts, and whose rows are safe."""
    kernel: int = 7
    """Neighbouring rows of which each gets the greatest attention, an odd number."""
    mix: float = 0.1
    """The paper's lambda: the share of attention in the score; the rest is what redundancy takes off."""
    threshold: float = 0.5
    """Cosine above which a row repeats another; the newest that a row repeats is not held against it."""
    group: Literal["max", "mean"] = "max"
    """``max``: the greatest logit of the query heads that share a row (the paper's code); ``mean``: the mean
    of their weights."""

    def __post_init__(self) -> None:
        at_least("window", self.window, 1)
        room_beside(self.budget, self.n_sink, self.window, "window")
        at_least("kernel", self.kernel, 1)
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel}: give an odd number, so that a row stands in the middle")
        one_of("group", self.group, ("max", "mean"))
        share("mix", self.mix)
        share("threshold", self.threshold)


def attention(held: Held, config: RKVConfig) -> Any:
    """The mean weight that the window's queries give the rows before it, pooled: ``[B, H, n]``."""
    fuse = "max" if config.group == "max" else None
    weights = held.last.fused(old=config.window, fuse_logits=fuse)
    return smoothed(weights, held.position, config.kernel, "max")


def redundancy(keys: Any, position: Any, threshold: float) -> Any:
    """Softmax over the rows of the mean cosine of other rows to each, ``[B, H, n]`` float32.

    Of the rows that one repeats (a cosine above ``threshold``) the newest is spared: its cosine counts as 0.
    All cosines of a row add up to its product with the sum of all directions, so that equal keys get the same
    bits, and only what is spared needs the matrix: a tile of it is held at a time, and by a kernel nothing.
    """
    xp = library(position)
    rows = unit(keys)
    itself = (rows * rows).sum(axis=-1)
    total = (rows * rows.sum(axis=2, keepdims=True)).sum(axis=-1) - itself
    spare = kernels.spared(rows, position, threshold)
    if spare is None:
        spare = spared(rows, position, threshold)
    power = xp.exp((total - spare) / keys.shape[2])  # a mean of cosines is at most 1
    return power / power.sum(axis=-1, keepdims=True)


def spared(rows: Any, position: Any, threshold: float) -> Any:
    """The cosines with rows of which a row is the newest that they repeat: ``[B, H, n]`` float32."""
    xp = library(position)
    batch, heads, n, _ = rows.shape
    step = max(1, TILE // (batch * heads * n))
    place, parts = position[:, :, None], []
    for first in range(0, n, step):
        part = slice(first, first + step)
        cosine = rows[:, :, part] @ rows.swapaxes(-1, -2)
        similar = (cosine > threshold) & (place != position[:, :, part, None])
        newest = xp.where(similar, place, -1).max(axis=-1, keepdims=True)
        parts.append(xp.where(place == newest, cosine, 0.0).sum(axis=2))
    return sum(parts)


def build(config: RKVConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""

    def score(held: Held) -> Any:
        repeated = redundancy(held.keys, held.position, config.threshold)
        return config.mix * attention(held, config) - (1 - config.mix) * repeated

    scorer = Scorer(score=score, window=config.window)
    return [Method(scorer, config.budget, config.n_sink, recent=config.window)] * len(layers)
