"""CriticalKV: half of the budget by attention, half by attention times what the value does to the output.

Feng, Lv, Guo, Cao, Xie, Zhou, "Identify Critical KV Cache in LLM Inference from an Output Perturbation
Perspective", 2025, arXiv 2502.03805, algorithm 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vqx import Arrivals, Held, LayerInfo, Method, Scorer
from vqx.eviction import LARGEST, safe
from vqx.observation import observed_attention
from vqx.options import not_negative, room_beside, share
from vqx.ranking import library, top

from vqx_critical.projection import outputs


@dataclass(frozen=True, kw_only=True)
class CriticalConfig:
    """Options of CriticalKV; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the guards, a share outside 0 to 1.
    """

    budget: int
    first_stage: float = 0.5
    """Share of the budget that goes by the base's score alone; 1 is the base."""
    epsilon: float = 1e-4
    """Added to the score before it is multiplied."""
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    window: int = 32
    """Without a base: the latest queries, whose attention is the score; their rows are safe (SnapKV)."""
    kernel: int = 7
    """Without a base: rows that are pooled along the sequence."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)
        observed_attention(self.window, kernel=self.kernel)  # what it refuses is refused now
        not_negative("epsilon", self.epsilon)
        share("first_stage", self.first_stage, "a share of the budget")


def build(config: CriticalConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer, around the attention of the latest queries (SnapKV)."""
    room_beside(config.budget, config.n_sink, config.window, "window")
    latest = observed_attention(config.window, kernel=config.kernel)
    return wrap(config, layers, [Method(latest, config.budget, config.n_sink, config.window)] * len(layers))


def wrap(config: CriticalConfig, layers: Sequence[LayerInfo], methods: Sequence[Method]) -> list[Method]:
    """The methods with their second half chosen anew.

    Raises:
        ValueError: methods that look at no attention, which a value's output could be weighed by.
    """
    if not all(method.scorer.reads_queries for method in methods):
        raise ValueError(
            "critical multiplies attention by what a value does to the output, and the method inside looks at"
            " none: use that method alone, or critical around one that does, such as critical(snapkv)"
        )
    return [
        method._replace(scorer=critical(config, layer, method))
        for layer, method in zip(layers, methods, strict=True)
    ]


def critical(config: CriticalConfig, layer: LayerInfo, method: Method) -> Scorer:
    """The best rows by the base's score first, the others by (A + epsilon) times their output."""
    base, norms = method.scorer, outputs(layer.attention, layer.number)
    first = int(method.budget * config.first_stage)

    def init(arrivals: Arrivals) -> Mapping[str, Any]:
        return {**base.init(arrivals), "output": norms(arrivals.values)}

    def observe(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
        return stats if base.observe is None else {**stats, **base.observe(stats, attention)}

    def score(held: Held) -> Any:
        score, position = base.score(held), held.position
        of = library(position)
        score = of.where(score == score, score, -of.inf)
        ranked = of.where(safe(method, position, held.newest), of.inf, score)
        output = (score + config.epsilon) * held.stats["output"]
        return of.where(top(ranked, position, first), LARGEST, output)

    return base._replace(score=score, init=init, observe=None if base.observe is None else observe)
