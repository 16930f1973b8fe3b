"""SnapKV: keep the rows that the end of the prompt attends to, and their neighbours.

Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024, arXiv 2404.14469,
section 4. Where generation goes on past the budget, the newest queries take the prompt's place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vqx import LayerInfo, Method
from vqx.observation import observed_attention
from vqx.options import room_beside


@dataclass(frozen=True, kw_only=True)
class SnapKVConfig:
    """Options of SnapKV; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a window that leaves no room, an even kernel, an unknown pooling or fusion.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    window: int = 32
    """The latest queries, whose rows are never evicted."""
    kernel: int = 7
    """Rows that are pooled along the sequence (the paper's experiments: 5 and 7)."""
    pool: Literal["mean", "max"] | None = "mean"
    """How neighbours are pooled; None: every row for itself."""
    group: Literal["mean", "max"] = "mean"
    """How query heads that share a row become one."""
    heads: Literal["each", "layer"] = "each"
    """``each``: every key-value head ranks alone (the paper); ``layer``: one kept set for all heads."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, self.window, "window")
        snapkv(self)  # what the score refuses is refused now


def snapkv(config: SnapKVConfig) -> Method:
    """The method of one layer."""
    score = observed_attention(
        config.window, kernel=config.kernel, pool=config.pool, group=config.group, heads=config.heads
    )
    return Method(score, config.budget, config.n_sink, recent=config.window)


def build(config: SnapKVConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    return [snapkv(config)] * len(layers)
