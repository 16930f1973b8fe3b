"""SqueezeAttention: layers whose attention hardly changes the hidden state give rows to the others.

Wang, Cui, Gan, Liu, Zhang, "SqueezeAttention: 2D Management of KV-Cache in LLM Inference via Layer-wise
Optimal Budget", ICLR 2025, arXiv 2404.04793, algorithm 1. How layers decide together is the core's
(``vqx.state.allotment``).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from vqx import LayerInfo, Method, Scorer
from vqx.options import not_negative, room_beside
from vqx.scorers import Share

GROUPS = 3


@dataclass(frozen=True, kw_only=True)
class SqueezeConfig:
    """Options of SqueezeAttention; ``budget`` rows stay in each layer, on average over the layers.

    Raises:
        ValueError: a budget that leaves no room beside the sinks, a percent outside 0 to 1.
    """

    budget: int
    percent: float = 0.5
    """Part of the budget for the layers whose attention changes least (the paper: 0.3 to 0.7)."""
    n_sink: int = 4
    """Alone: first positions that are never evicted."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)
        not_negative("percent", self.percent)
        if not 0 < self.percent <= 1:
            raise ValueError(f"percent={self.percent!r}: give a part of the budget, above 0 and at most 1")


def build(config: SqueezeConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer: the sinks and the newest rows (StreamingLLM) stay."""
    alike = Scorer(score=lambda held: 0.0)
    return wrap(config, layers, [Method(alike, config.budget, config.n_sink)] * len(layers))


def wrap(config: SqueezeConfig, layers: Sequence[LayerInfo], methods: Sequence[Method]) -> list[Method]:
    """The methods with rows that the layers share; fewer layers than groups keep one budget each.

    Raises:
        ValueError: methods that set the budgets of layers themselves.
    """
    if any(method.budget != config.budget for method in methods):
        raise ValueError("squeezeattention sets the budgets of the layers, and so does the method inside it")
    if len(layers) < GROUPS:
        return list(methods)

    def at(index: int, rows: int) -> Method:
        return methods[index]._replace(budget=rows)

    def chosen(similar: Sequence[float]) -> list[int]:
        return budgets(similar, config.budget, config.percent)

    share = Share(least=int(config.percent * config.budget), budgets=chosen, at=at)
    return [method._replace(share=share) for method in methods]


def budgets(similar: Sequence[float], budget: int, percent: float) -> list[int]:
    """The budgets of layers: ``percent`` for the most similar group, the rest evenly for the others."""
    squeezed = groups(similar)[-1]
    others = [layer for layer in range(len(similar)) if layer not in squeezed]
    rows = [int(percent * budget)] * len(similar)
    even, left = divmod(len(similar) * budget - len(squeezed) * rows[0], len(others))
    for place, layer in enumerate(others):
        rows[layer] = even + (place < left)
    return rows


def groups(similar: Sequence[float]) -> list[list[int]]:
    """Layers in three groups of least squared distance to their means, the least similar group first.

    In one dimension the groups of k-means are neighbours, so the best ones are found by trying all cuts.
    """
    order = sorted(range(len(similar)), key=lambda layer: similar[layer])

    cuts = itertools.combinations(range(1, len(order)), GROUPS - 1)
    candidates = ([order[:first], order[first:second], order[second:]] for first, second in cuts)

    def spread(candidate: list[list[int]]) -> float:
        total = 0.0
        for group in candidate:
            mean = sum(similar[layer] for layer in group) / len(group)
            total += sum((similar[layer] - mean) ** 2 for layer in group)
        return total

    return min(candidates, key=spread)
