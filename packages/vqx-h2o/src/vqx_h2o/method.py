"""H2O: keep the rows that gathered most attention, and the recent ones.

Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
2023, arXiv 2306.14048, algorithm 1.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vqx import LayerInfo, Method, accumulated
from vqx.options import at_least, one_of, room_beside

from vqx_h2o.kernel import MASS, SEEN


@dataclass(frozen=True, kw_only=True)
class H2OConfig:
    """Options of H2O; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows, a decay outside (0, 1].
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    recent: int | None = None
    """Newest rows that are never evicted; None: half of the budget, as in the paper."""
    grace: int = 0
    """Newest arrivals that are never evicted; the larger of ``recent`` and ``grace`` counts."""
    decay: float = 1.0
    """Multiplies the mass before each query's share is added; 1 is the paper."""
    normalise: Literal["seen"] | None = "seen"
    """``seen`` divides the mass by the number of queries that could see the row; None: the paper, which
    favours rows that came early."""

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 1)
        if self.recent is None:
            object.__setattr__(self, "recent", self.budget // 2)
        at_least("grace", self.grace, 0)
        one_of("normalise", self.normalise, (None, "seen"))
        room_beside(self.budget, self.n_sink, self.recent or 0)
        room_beside(self.budget, self.n_sink, self.grace, "grace")
        if not isinstance(self.decay, (int, float)) or not 0 < self.decay <= 1:
            raise ValueError(f"decay={self.decay!r}: give a number above 0 and at most 1 (1: nothing fades)")

    @property
    def newest_safe(self) -> int:
        return max(self.recent or 0, self.grace)


def h2o(config: H2OConfig, *, itself: bool) -> Method:
    """The method of one layer."""
    mass = accumulated(decay=config.decay, itself=itself, per_sighting=config.normalise == "seen")
    mass = mass.with_kernel(
        SEEN if config.normalise == "seen" else MASS,
        lambda newest, generated, count: (config.decay**count,),
        itself=itself,
        decay=config.decay,
    )
    return Method(mass, config.budget, config.n_sink, config.newest_safe)


def build(config: H2OConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer; the same one for layers that are alike, which decide together then."""
    if config.newest_safe == 0:
        warnings.warn(
            "h2o with recent=0 and grace=0 keeps the first tokens for good: a new row starts with no mass"
            " and goes at once; set recent (the paper: half of the budget)",
            stacklevel=2,
        )
    methods = {itself: h2o(config, itself=itself) for itself in (True, False)}
    return [methods[layer.queries == "model"] for layer in layers]
