"""PyramidKV: SnapKV's score, with more rows in the first layers than in the last.

Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling", 2024,
arXiv 2406.02069, section 4: attention is spread in the first layers and gathers in the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vqx import LayerInfo, Method, Scorer
from vqx.observation import observed_attention
from vqx.options import not_negative, room_beside


@dataclass(frozen=True, kw_only=True)
class PyramidKVConfig:
    """Options of PyramidKV; ``budget`` rows stay in a layer on the mean over all layers.

    Raises:
        ValueError: a window that leaves no room, a beta below 1, what SnapKV's score refuses.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    window: int = 8
    """The latest queries, whose rows are never evicted."""
    beta: float = 20
    """The last layer's budget is the mean's share ``1 / beta``; 1 gives all layers alike."""
    kernel: int = 7
    """Rows that are pooled along the sequence."""
    pool: Literal["mean", "max"] | None = "mean"
    """How neighbours are pooled; None: every row for itself."""
    group: Literal["mean", "max"] = "mean"
    """How query heads that share a row become one."""
    heads: Literal["each", "layer"] = "each"
    """``each``: every key-value head ranks alone (the paper); ``layer``: one kept set for all heads."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, self.window, "window")
        not_negative("beta", self.beta)
        if self.beta < 1:
            raise ValueError(f"beta={self.beta!r}: give a number of at least 1 (1: all layers alike)")
        observed(self)  # what the score refuses is refused now


def observed(config: PyramidKVConfig) -> Scorer:
    """SnapKV's score."""
    return observed_attention(
        config.window, kernel=config.kernel, pool=config.pool, group=config.group, heads=config.heads
    )


def layer_budgets(config: PyramidKVConfig, layers: int) -> list[int]:
    """Budgets that fall along a straight line; their mean is ``config.budget``, exactly.

    The last layer has the mean divided by beta, or the least that the guards leave room for, if that is
    more; the first has as much above the mean as the last has below it.
    """
    mean, least = config.budget, config.n_sink + config.window + 1
    height = mean - max(mean / config.beta, least)  # of the first layer above the mean
    # a layer below the middle has as much less as its mirror image above it has more
    above = [round(height * (1 - 2 * number / (layers - 1))) for number in range(layers // 2)]
    middle = [0] * (layers % 2)
    return [mean + more for more in (*above, *middle, *(-more for more in reversed(above)))]


def build(config: PyramidKVConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer, the first with the greatest budget."""
    score = observed(config)
    budgets = layer_budgets(config, len(layers))
    return [Method(score, budget, config.n_sink, recent=config.window) for budget in budgets]
