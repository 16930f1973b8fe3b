"""TOVA: keep the rows that the latest query attends to.

Oren et al., "Transformers are Multi-State RNNs", EMNLP 2024, arXiv 2401.06104, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vqx import Held, LayerInfo, Method, Scorer
from vqx.options import one_of, room_beside

from vqx_tova.kernel import LAST


@dataclass(frozen=True, kw_only=True)
class TovaConfig:
    """Options of TOVA; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows, an unknown ``heads``.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    heads: Literal["layer", "each"] = "layer"
    """``layer``: one kept set for all heads, by the mean over the layer's query heads (the paper);
    ``each``: every key-value head ranks alone."""
    keep_newest: bool = True
    """Shield the newest row; False is the paper, where it may go."""

    def __post_init__(self) -> None:
        one_of("heads", self.heads, ("layer", "each"))
        one_of("keep_newest", self.keep_newest, (True, False))
        room_beside(self.budget, self.n_sink, int(self.keep_newest), "keep_newest")


def last_attention(config: TovaConfig) -> Scorer:
    """The attention of the last query."""

    def score(held: Held) -> Any:
        each = held.last.fused()
        return held.over_heads(each) if config.heads == "layer" else each

    scorer = Scorer(score=score, window=1)
    return scorer.with_kernel(LAST, lambda *_: (), layer=config.heads == "layer")


def tova(config: TovaConfig) -> Method:
    """The method of one layer."""
    return Method(last_attention(config), config.budget, config.n_sink, recent=int(config.keep_newest))


def build(config: TovaConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    return [tova(config)] * len(layers)
