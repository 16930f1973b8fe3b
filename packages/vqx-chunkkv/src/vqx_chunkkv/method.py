"""ChunkKV: whole chunks of rows stay or go, so that what is kept still reads as phrases.

Liu et al., "ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference",
2025, arXiv 2502.00299, algorithm 1. A chunk's score is the mean of its rows' scores, by any method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vqx import Held, LayerInfo, Method, Scorer
from vqx.eviction import safe
from vqx.observation import observed_attention
from vqx.options import at_least, one_of, room_beside
from vqx.pooling import chunk_means
from vqx.ranking import library


@dataclass(frozen=True, kw_only=True)
class ChunkKVConfig:
    """Options of ChunkKV; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows, a chunk below 1.
    """

    budget: int
    chunk: int = 10
    """Positions that stay or go together (the paper: 10 to 20)."""
    heads: Literal["each", "layer"] = "each"
    """``each``: every key-value head ranks its chunks alone; ``layer``: one kept set for all heads, by the
    mean over their scores (kvpress)."""
    n_sink: int = 4
    """Alone: first positions that are never evicted (the paper: 0)."""
    window: int = 32
    """Alone: the latest queries, whose attention is the score; their rows are never evicted."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)
        at_least("chunk", self.chunk, 1)
        at_least("window", self.window, 1)
        one_of("heads", self.heads, ("each", "layer"))


def chunked(config: ChunkKVConfig, method: Method) -> Scorer:
    """The mean of the base's scores over the rows of a chunk that are free to go."""
    base = method.scorer

    def score(held: Held) -> Any:
        position = held.position
        of = library(position)
        each = of.broadcast_to(of.array(base.score(held)), position.shape)
        free = of.logical_not(safe(method, position, held.newest))
        means = chunk_means(each, position, config.chunk, free)
        return held.over_heads(means) if config.heads == "layer" else means

    return base._replace(score=score)


def wrap(config: ChunkKVConfig, layers: Sequence[LayerInfo], methods: Sequence[Method]) -> list[Method]:
    """The methods with their rows ranked by chunks: one for layers of one, which decide together then."""
    found = {id(method): method._replace(scorer=chunked(config, method)) for method in methods}
    return [found[id(method)] for method in methods]


def build(config: ChunkKVConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer, over the attention of the latest queries (SnapKV's score, not pooled)."""
    room_beside(config.budget, config.n_sink, config.window, "window")
    seen = observed_attention(config.window, pool=None)
    return wrap(config, layers, [Method(seen, config.budget, config.n_sink, config.window)] * len(layers))
