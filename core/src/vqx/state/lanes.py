"""The rows of all heads of a layer in one lane, so that its heads can share one budget.

A lane is rectangular, whatever each head keeps of it: memory is the sum of what the heads keep. Attention
then has one key-value head for all query heads, and a mask that shows each the rows of its own head only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx

from vqx.state.rows import Rows, filled, pick

ELSEWHERE = 2**30
"""The position, for a head, of a row of another head: no sink, not recent, seen by no query."""


TILE = 2**25
"""Numbers of a mask held at once (32 MiB of booleans)."""


class CannotShare(ValueError):
    """A score asked for what heads that share a budget do not have: rows side by side, one set for all."""


def one_lane(rows: Rows) -> Rows:
    """Rows ``[B, H, n]`` as ``[B, 1, H * n]``, each with the column ``head``."""
    batch, heads, n = rows.position.shape
    head = mx.broadcast_to(mx.arange(heads, dtype=mx.int32)[:, None], (batch, heads, n))

    def lane(array: mx.array) -> mx.array:
        return array.reshape(batch, 1, heads * n, *array.shape[3:])

    columns = {name: lane(column) for name, column in {**rows.columns, "head": head}.items()}
    keys, values = filled(rows)
    return Rows(lane(keys), lane(values), lane(rows.position), columns)


def filled_lane(rows: Rows, counts: Sequence[int]) -> Rows:
    """The same where each sequence fills the first of ``counts`` rows only: these come first in its lane."""
    lane, n = one_lane(rows), rows.position.shape[2]
    if min(counts) == n:
        return lane
    slot = mx.arange(lane.length)
    behind = slot % n >= mx.array([*counts])[:, None]
    order = mx.argsort(mx.where(behind, slot + lane.length, slot), axis=-1)
    return pick(lane, order[:, None])


def apart(rows: Rows, heads: int) -> Rows:
    """A lane in which every head has the rows of all tokens as ``[B, H, n]``, oldest first."""
    head = rows.columns["head"]
    n = rows.length // heads
    rows = pick(rows, mx.argsort(head * n + rows.position, axis=2))

    def each(array: mx.array) -> mx.array:
        return array.reshape(array.shape[0], heads, n, *array.shape[3:])

    columns = {name: each(column) for name, column in rows.columns.items() if name != "head"}
    keys, values = filled(rows)
    return Rows(each(keys), each(values), each(rows.position), columns)


def positions(rows: Rows, heads: int) -> mx.array:
    """The positions as each head sees them ``[B, H, N]``: ``ELSEWHERE`` where a row is another head's."""
    mine = rows.columns["head"] == mx.arange(heads)[:, None]
    return mx.where(mine, rows.position, ELSEWHERE)


def seen_by_heads(columns: Mapping[str, mx.array], heads: int) -> dict[str, mx.array]:
    """Columns ``[B, 1, N]`` shown to every head, ``[B, H, N]``."""
    return {name: mx.broadcast_to(c, (c.shape[0], heads, c.shape[2])) for name, c in columns.items()}


def own(column: mx.array, rows: Rows, heads: int) -> mx.array:
    """Of ``[B, H, N]`` what each row's own head says, ``[B, 1, N]``."""
    head = rows.columns["head"]
    column = mx.broadcast_to(column, (head.shape[0], heads, head.shape[2]))
    return mx.take_along_axis(column, head, axis=1)


def masks(
    position: mx.array, head: mx.array, heads: int, query_heads: int, start: Any, length: int
) -> Iterator[tuple[int, int, mx.array]]:
    """For tiles of a forward's queries, first to last + 1, what they see: booleans ``[B, Hq, s, N]``.

    Args:
        position: of the rows of a lane, ``[B, 1, N]``.
        head: whose they are; -1: nobody's.
        start: the position of the first query; ``[B, 1, 1, 1]`` where the sequences of a batch differ.
    """
    of_query = (mx.arange(query_heads) // (query_heads // heads))[:, None, None]
    mine = head[:, :, None] == of_query
    step = max(1, TILE // (mine.size or 1))
    for first in range(0, length, step):
        last = min(first + step, length)
        queries = start + mx.arange(first, last, dtype=mx.int32)[:, None]
        yield first, last, mine & (position[:, :, None] <= queries)
