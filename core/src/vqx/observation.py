"""The attention of the latest queries over the rows before them, pooled along the sequence.

SnapKV's score (Li et al., 2024, arXiv 2404.14469, section 4), which PyramidKV and ChunkKV rank by too.
"""

from typing import Any, Literal

from vqx.options import at_least, one_of
from vqx.pooling import Pool, smoothed
from vqx.scorers import Held, Scorer


def observed_attention(
    window: int,
    *,
    kernel: int = 7,
    pool: Pool | None = "mean",
    group: Literal["mean", "max"] = "mean",
    heads: Literal["each", "layer"] = "each",
) -> Scorer:
    """Score the rows before the ``window`` newest by the attention of the window's queries.

    Args:
        window: how many queries look; their own rows score 0, and the method has to protect them.
        kernel: rows that are pooled, an odd number.
        pool: how neighbours are pooled; None: not at all.
        group: how query heads that share a row become one, before pooling.
        heads: every key-value head ranks alone, or all heads of a layer by their mean.

    Raises:
        ValueError: a window below 1, an even kernel, an unknown choice.
    """
    at_least("window", window, 1)
    at_least("kernel", kernel, 1)
    if kernel % 2 == 0:
        raise ValueError(f"kernel={kernel}: give an odd number, so that a row stands in the middle")
    one_of("pool", pool, ("mean", "max", None))
    one_of("group", group, ("mean", "max"))
    one_of("heads", heads, ("each", "layer"))

    def score(held: Held) -> Any:
        # the mean over the window ranks as its sum does
        seen = held.last.fused(group=group) * (held.position <= held.newest - window)
        if pool is not None:
            seen = smoothed(seen, held.position, kernel, pool)
        return held.over_heads(seen) if heads == "layer" else seen

    return Scorer(score=score, window=window)
