"""StreamingLLM: keep the first rows and the newest, whatever attention says.

Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024, arXiv 2309.17453.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vqx import LayerInfo, Method, Scorer
from vqx.options import room_beside


@dataclass(frozen=True, kw_only=True)
class StreamingConfig:
    """Options of StreamingLLM and of ``sink``; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the sinks.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted; the other rows are the newest."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)


@dataclass(frozen=True, kw_only=True)
class SlidingWindowConfig:
    """Options of a sliding window; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the sinks.
    """

    budget: int
    n_sink: int = 0
    """First positions that are never evicted; the other rows are the newest."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)


def build(config: StreamingConfig | SlidingWindowConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer: all rows score alike, and ties evict the oldest."""
    alike = Scorer(score=lambda held: 0.0)
    return [Method(alike, config.budget, config.n_sink)] * len(layers)
