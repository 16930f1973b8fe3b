"""Protected spans: ranges of the text that another method may not evict, or not below their fair share.

Chen, Geh, Grover, Van den Broeck, Israel, "The Pitfalls of KV Cache Compression", 2025, arXiv 2510.00231:
eviction forgets instructions unevenly, which protecting tokens, or evicting fairly, mends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vqx import Held, LayerInfo, Method, Scorer
from vqx.eviction import LARGEST
from vqx.options import at_least, one_of, room_beside
from vqx.ranking import library, top

Spans = tuple[tuple[int, int], ...]
"""Ranges of token positions, first to last + 1."""


@dataclass(frozen=True, kw_only=True)
class ProtectConfig:
    """Options of the protection; ``budget`` rows stay in each layer, those of the spans among them.

    Raises:
        ValueError: spans that are no ranges, a budget that leaves no room beside what is protected.
    """

    budget: int
    spans: Spans = ()
    """Ranges of token positions, first to last + 1, the same for every sequence of a batch."""
    keep: Literal["all", "share"] = "all"
    """``all``: no row of a span is evicted; ``share``: of each span at least its share of the rows that are
    free to choose stays, by length among the tokens seen (the paper's fair eviction)."""
    n_sink: int = 4
    """First positions that are never evicted."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)
        one_of("keep", self.keep, ("all", "share"))
        object.__setattr__(self, "spans", tuple(_span(span) for span in self.spans))
        if self.keep == "all":
            _room(self.budget, self.n_sink, 0, self.spans)


def build(config: ProtectConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer: beside the spans, the sinks and the newest rows (StreamingLLM) stay."""
    alike = Scorer(score=lambda held: 0.0)
    return wrap(config, layers, [Method(alike, config.budget, config.n_sink)] * len(layers))


def wrap(config: ProtectConfig, layers: Sequence[LayerInfo], methods: Sequence[Method]) -> list[Method]:
    """The methods with their spans protected."""
    if config.keep == "share":
        return [method._replace(scorer=fair(method, config.spans)) for method in methods]
    for method in methods:
        _room(method.budget, method.n_sink, method.recent, method.spans + config.spans)
    return [method._replace(spans=method.spans + config.spans) for method in methods]


def fair(method: Method, spans: Spans) -> Scorer:
    """The method's score, with the best rows of each span raised above all rows that are free to go."""
    free = method.budget - method.n_sink - method.recent

    def score(held: Held) -> Any:
        score, position = method.scorer.score(held), held.position
        of, seen = library(position), held.newest + 1
        for first, end in spans:
            inside = (position >= first) & (position < end)
            read = (
                max(min(end, seen) - first, 0)
                if isinstance(seen, int)
                else of.clip(seen - first, 0, end - first)
            )
            share = free * read // seen
            ranked = of.where(inside & (score == score), score, -of.inf)
            score = of.where(inside & top(ranked, position, share), LARGEST, score)
        return score

    return method.scorer._replace(score=score)


def _span(span: Any) -> tuple[int, int]:
    try:
        first, end = (int(at) for at in span)
    except (TypeError, ValueError):
        first, end = 0, 0
    if not 0 <= first < end:
        raise ValueError(f"span {span!r}: give two token positions, the first and the last + 1")
    return first, end


def _room(budget: int, n_sink: int, recent: int, spans: Spans) -> None:
    held = set(range(n_sink)).union(*(range(first, end) for first, end in spans))
    at_least("budget", budget, 1)
    if len(held) + recent >= budget:
        raise ValueError(
            f"budget={budget} leaves no room beside {len(held)} rows of spans and sinks and recent={recent};"
            f" give a budget of at least {len(held) + recent + 1}, or keep='share'"
        )
