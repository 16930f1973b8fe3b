"""Ada-KV: one ranking over all heads of a layer says how many rows each head keeps.

Feng, Lv, Cao, Xie, Zhou, "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient
LLM Inference", 2024, arXiv 2407.11550, algorithm 1. The core holds the rows (``vqx.state.lanes``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vqx import LayerInfo, Method
from vqx.observation import observed_attention
from vqx.options import room_beside, share


@dataclass(frozen=True, kw_only=True)
class AdaConfig:
    """Options of Ada-KV; ``budget`` rows a head stay in each layer, on average over its heads.

    Raises:
        ValueError: a budget that leaves no room beside the guards, a floor outside 0 to 1.
    """

    budget: int
    floor: float = 0.2
    """Part of the budget that every head keeps at least; 1 is the method without shared budgets."""
    n_sink: int = 4
    """Alone: first positions that are never evicted (the paper: 0)."""
    window: int = 32
    """Alone: the latest queries, whose attention is the score; their rows are safe (SnapKV)."""
    kernel: int = 7
    """Alone: rows that are pooled along the sequence."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)
        observed_attention(self.window, kernel=self.kernel)  # what it refuses is refused now
        share("floor", self.floor, "a part of the budget")


def build(config: AdaConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer, around the attention of the latest queries (SnapKV)."""
    room_beside(config.budget, config.n_sink, config.window, "window")
    latest = observed_attention(config.window, kernel=config.kernel)
    return wrap(config, layers, [Method(latest, config.budget, config.n_sink, config.window)] * len(layers))


def wrap(config: AdaConfig, layers: Sequence[LayerInfo], methods: Sequence[Method]) -> list[Method]:
    """The methods with one budget for the heads of a layer.

    Each asks for the latest query at least, so that a layer whose attention cannot be seen is found out.

    Raises:
        ValueError: methods that rank by anything but attention, which heads cannot be compared by.
    """
    if not all(method.scorer.reads_queries for method in methods):
        raise ValueError(
            "ada ranks the rows of all heads together, by attention, and the method inside looks at none:"
            " use that method alone, or ada around one that does, such as ada(h2o)"
        )
    return [
        method._replace(
            floor=config.floor, scorer=method.scorer._replace(window=max(method.scorer.window, 1))
        )
        for method in methods
    ]
