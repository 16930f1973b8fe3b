"""KeyDiff: keep the rows whose keys point away from the mean key.

Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
Resource-Constrained Environments", 2025, arXiv 2504.15364, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vqx import LayerInfo, Method, Scorer
from vqx.distinctness import distinctness
from vqx.options import at_least, room_beside, warn_without_recent


@dataclass(frozen=True, kw_only=True)
class KeyDiffConfig:
    """Options of KeyDiff; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    recent: int | None = None
    """Newest rows that are never evicted; None: half of the budget (the paper: 0)."""

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 1)
        if self.recent is None:
            object.__setattr__(self, "recent", self.budget // 2)
        room_beside(self.budget, self.n_sink, self.recent or 0)


def build(config: KeyDiffConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    warn_without_recent("keydiff", config.recent or 0)
    method = Method(Scorer(score=distinctness), config.budget, config.n_sink, config.recent or 0)
    return [method] * len(layers)
