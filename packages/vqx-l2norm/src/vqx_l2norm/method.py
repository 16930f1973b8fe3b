"""L2 norm: keep the rows whose keys are shortest, since short keys draw most attention.

Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression", EMNLP 2024, arXiv
2406.11430.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vqx import WHOLE, Arrivals, LayerInfo, Method, Scorer
from vqx.norms import norm
from vqx.options import at_least, room_beside, warn_without_recent


@dataclass(frozen=True, kw_only=True)
class L2NormConfig:
    """Options of the L2 norm; ``budget`` rows stay in each layer but the first ``skip``.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    recent: int | None = None
    """Newest rows that are never evicted; None: half of the budget (the paper: 0)."""
    skip: int = 2
    """First layers that are left whole: they keep every row, and grow with the text."""

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 1)
        if self.recent is None:
            object.__setattr__(self, "recent", self.budget // 2)
        room_beside(self.budget, self.n_sink, self.recent or 0)
        at_least("skip", self.skip, 0)


def measured(arrivals: Arrivals) -> Mapping[str, Any]:
    """A key does not change, so its norm is taken once."""
    return {"norm": norm(arrivals.keys)}


def build(config: L2NormConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    warn_without_recent("l2norm", config.recent or 0)
    shortest = Scorer(score=lambda held: -held.stats["norm"], init=measured)
    bounded = Method(shortest, config.budget, config.n_sink, config.recent or 0)
    whole = Method(Scorer(score=lambda held: 0.0), WHOLE)
    return [whole if number < config.skip else bounded for number in range(len(layers))]
