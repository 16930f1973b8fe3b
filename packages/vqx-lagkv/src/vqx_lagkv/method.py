"""LagKV: keep the rows whose keys and values spread most, measured by the block of rows behind them.

Liang et al., "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important", 2025,
arXiv 2504.04704.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vqx import Held, LayerInfo, Method, Scorer
from vqx.norms import wide
from vqx.options import at_least, room_beside
from vqx.ranking import library


@dataclass(frozen=True, kw_only=True)
class LagKVConfig:
    """Options of LagKV; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the sinks and the blocks that are kept whole.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted, and belong to no block."""
    lag: int | None = None
    """Rows of a block. The last whole block and the rows behind it are kept. None: 128, as in the paper, or
    a quarter of the budget beside the sinks where that is less."""

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 1)
        at_least("n_sink", self.n_sink, 0)
        if self.lag is None:
            object.__setattr__(self, "lag", max(min(128, (self.budget - self.n_sink) // 4), 2))
        at_least("lag", self.lag, 2)
        room_beside(self.budget, self.n_sink, 2 * self.rows - 1, "2 * lag - 1")

    @property
    def rows(self) -> int:
        return self.lag or 0


def ranked(held: Held, n_sink: int, lag: int) -> Any:
    """Each row's rank within its block, a share of 1; sinks, the last block and what follows get 1."""
    xp = library(held.position)
    order = xp.argsort(held.position, axis=-1)
    n = order.shape[-1]
    n_sink = min(n_sink, n)
    count = (n - n_sink) // lag
    spreads = []
    for rows in (held.keys, held.values):
        rows = wide(xp.take_along_axis(rows, order[..., None], axis=2))[:, :, n_sink : n_sink + count * lag]
        spreads.append(_shares(rows.reshape(*rows.shape[:2], count, lag, rows.shape[-1]), xp))
    rank = _ranks((spreads[0] + spreads[1]) / 2, xp) / lag
    rank = rank.reshape(*order.shape[:2], -1)
    first, after = (xp.ones((*order.shape[:2], m)) for m in (n_sink, n - n_sink - rank.shape[-1]))
    score = xp.concatenate([first, rank, after], axis=-1)
    return xp.take_along_axis(score, xp.argsort(order, axis=-1), axis=-1)


def _shares(blocks: Any, xp: Any) -> Any:
    """Blocks ``[B, H, m, lag, D]`` -> softmax over each block of the spread of its rows, the last left out.

    A row's spread is the deviation over channels, each scaled by what it spans in the next block. A channel
    that does not vary there stays as it is.
    """
    least = blocks[:, :, 1:].min(axis=-2, keepdims=True)
    span = blocks[:, :, 1:].max(axis=-2, keepdims=True) - least
    scaled = (blocks[:, :, :-1] - least) / (span + (span == 0))
    spread = scaled.var(axis=-1, ddof=1) ** 0.5
    weights = xp.exp(spread - spread.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _ranks(score: Any, xp: Any) -> Any:
    """How many rows of its block stand below each row ``[..., lag]``; of equals the older stands below."""
    lag = score.shape[-1]
    one, other = score[..., :, None], score[..., None, :]
    older = xp.arange(lag)[None, :] < xp.arange(lag)[:, None]
    return wide(((other < one) | ((other == one) & older)).sum(axis=-1))


def build(config: LagKVConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    scorer = Scorer(score=lambda held: ranked(held, config.n_sink, config.rows))
    return [Method(scorer, config.budget, config.n_sink, recent=config.rows)] * len(layers)
