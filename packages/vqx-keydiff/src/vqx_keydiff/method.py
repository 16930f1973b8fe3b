"""KeyDiff: keep the rows whose keys point away from the mean key.

Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
Resource-Constrained Environments", 2025, arXiv 2504.15364, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vqx import Held, LayerInfo, Method, Scorer
from vqx.norms import unit
from vqx.options import room_beside


@dataclass(frozen=True, kw_only=True)
class KeyDiffConfig:
    """Options of KeyDiff; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    recent: int = 0
    """Newest rows that are never evicted."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, self.recent)


def unlikeness(held: Held) -> Any:
    """-cos(key, mean direction of the keys held), ``[B, H, n]``."""
    directions = unit(held.keys)
    anchor = unit(directions.mean(axis=2, keepdims=True))
    return -(directions * anchor).sum(axis=-1)


def build(config: KeyDiffConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    method = Method(Scorer(score=unlikeness), config.budget, config.n_sink, config.recent)
    return [method] * len(layers)
