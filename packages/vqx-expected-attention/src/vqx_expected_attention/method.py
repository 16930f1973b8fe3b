"""Expected Attention: keep the rows that queries to come are expected to attend to.

Devoto, Jeblick and Jégou, "Expected Attention: KV Cache Compression by Estimating Attention from Future
Queries Distribution", 2025, arXiv 2510.00636.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vqx import LayerInfo, Method
from vqx.expectation import expected
from vqx.options import at_least, not_negative, one_of, room_beside, warn_without_recent


@dataclass(frozen=True, kw_only=True)
class ExpectedAttentionConfig:
    """Options of Expected Attention; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows, values outside those listed.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted; their queries and keys are left out of all statistics."""
    recent: int | None = None
    """Newest rows that are never evicted; None: 32, at most a quarter of the budget (the paper: 0)."""
    future: int = 512
    """How many of the positions to come the rotation is averaged over."""
    value_norm: bool = True
    """Multiply the expected weight by the norm of the value."""
    epsilon: float = 0.0
    """Added to the expected weight before that."""

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 1)
        if self.recent is None:
            object.__setattr__(self, "recent", min(32, self.budget // 4))
        room_beside(self.budget, self.n_sink, self.recent or 0)
        at_least("future", self.future, 1)
        one_of("value_norm", self.value_norm, (True, False))
        not_negative("epsilon", self.epsilon)


def build(config: ExpectedAttentionConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    warn_without_recent("expected-attention", config.recent or 0)
    scorer = expected(
        n_sink=config.n_sink,
        future=config.future,
        value_norm=config.value_norm,
        epsilon=config.epsilon,
    )
    return [Method(scorer, config.budget, config.n_sink, config.recent or 0)] * len(layers)
