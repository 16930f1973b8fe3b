"""KVzip: keep the rows that get most attention while the model repeats its context.

Kim, Kim, Kwon, Lee, Yun, Song, "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction",
NeurIPS 2025, arXiv 2505.23416, section 3. The repetition is ``vqx_kvzip.compress``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vqx import Arrivals, Held, LayerInfo, Method, Scorer
from vqx.eviction import LARGEST
from vqx.options import room_beside

REPEATED = "repeated"
"""The note that a layer's rows were scored."""


@dataclass(frozen=True, kw_only=True)
class KVzipConfig:
    """Options of KVzip; ``budget`` rows stay in each layer once the context was repeated.

    Raises:
        ValueError: a budget that leaves no room beside the sinks.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted, and that every repeating query sees."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)


def build(config: KVzipConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer.

    Raises:
        ValueError: where keys stand in for queries, since repeating is what the model's queries do.
    """
    for layer in layers:
        if layer.queries != "model":
            raise ValueError(
                f"layer {layer.number}: kvzip reads the model's own queries, and queries={layer.queries!r}"
                " was asked for, or is all that this model shows; use another method"
            )
    scorer = Scorer(score=score, init=init, observe=unchanged)
    return [Method(scorer, config.budget, config.n_sink)] * len(layers)


def init(arrivals: Arrivals) -> Mapping[str, Any]:
    """Rows that were not repeated outrank those that were."""
    return {"attention": arrivals.full(LARGEST)}


def unchanged(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
    """Only a repetition counts; that queries can be seen at all is checked when caches are built."""
    return stats


def score(held: Held) -> Any:
    """The greatest attention that a row got in the repetition."""
    if REPEATED not in held.notes:
        raise ValueError(
            "kvzip cannot say which rows to keep before the model repeated its context: read the context with"
            " vqx_kvzip.compress(model, tokenizer, caches, tokens), then generate with these caches"
        )
    return held.stats["attention"]
