"""MorphKV: keep the rows that the last few queries attend to, and these queries' own rows.

Ghadia et al., "Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs",
ICML 2025, arXiv 2503.00979, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vqx import Held, LayerInfo, Method, Scorer
from vqx.options import at_least, one_of, room_beside

from vqx_morphkv.kernel import RELEVANCE


@dataclass(frozen=True, kw_only=True)
class MorphKVConfig:
    """Options of MorphKV; ``budget`` rows stay in each layer.

    Raises:
        ValueError: budget or window below 1, a window that leaves no room, an unknown fusion.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    window: int = 8
    """The latest queries, whose rows are never evicted."""
    over: Literal["all", "old"] = "all"
    """The rows of the softmax: ``all``, or only those ``old`` rows before the window (the paper)."""
    fuse: Literal["sum", "max"] = "sum"
    """How the weights of the window's queries become one score."""
    group: Literal["mean", "max", "logits"] = "mean"
    """How query heads that share a row become one: mean or max of their weights (the paper's code for
    Mistral, Qwen2 and Phi-3), or the sum of their logits before the softmax (for Llama)."""

    def __post_init__(self) -> None:
        at_least("window", self.window, 1)
        room_beside(self.budget, self.n_sink, self.window, "window")
        one_of("over", self.over, ("all", "old"))
        one_of("fuse", self.fuse, ("sum", "max"))
        one_of("group", self.group, ("mean", "max", "logits"))


def recent_relevance(config: MorphKVConfig, *, causal: bool) -> Scorer:
    """The attention of the last ``window`` queries, fused over the group and the window."""

    fused: dict[str, Any] = {
        "group": "max" if config.group == "max" else "mean",
        "queries": "max" if config.fuse == "max" else "mean",
        "old": config.window if config.over == "old" else 0,
        "fuse_logits": "sum" if config.group == "logits" else None,
        "causal": causal,
    }

    def score(held: Held) -> Any:
        return held.last.fused(**fused)

    return Scorer(score=score, window=config.window).with_kernel(RELEVANCE, lambda *_: (), **fused)


def morphkv(config: MorphKVConfig, *, causal: bool) -> Method:
    """The method of one layer."""
    relevance = recent_relevance(config, causal=causal)
    return Method(relevance, config.budget, config.n_sink, recent=config.window)


def build(config: MorphKVConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer, the same one for layers that are alike, which decide together then.

    Stored keys that stand in for queries read all stored rows.
    """
    methods = {causal: morphkv(config, causal=causal) for causal in (True, False)}
    return [methods[layer.queries == "model"] for layer in layers]
