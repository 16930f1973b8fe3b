"""What each query of a batch's forward sees: filled rows, and its own sequence's tokens up to itself."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from vqx.eviction import NEVER
from vqx.state import lanes
from vqx.state.layer import Layer
from vqx.state.members import Own
from vqx.state.parts import Part, beside, in_lanes


def causal(rows: Sequence[int], skip: Sequence[int], length: int) -> mx.array:
    """Filled rows, and own tokens up to each query's: ``[B, 1, S, max rows + S]`` booleans.

    Padding sees itself at least: a query that sees nothing at all would be NaN.
    """
    kept = mx.arange(max(rows)) < mx.array([*rows])[:, None]
    key, query = mx.arange(length)[None], mx.arange(length)[:, None]
    new = (key <= query) & ((key >= mx.array([*skip])[:, None, None]) | (key == query))
    seen = mx.broadcast_to(kept[:, None], (len(rows), length, max(rows)))
    return mx.concatenate([seen, new], axis=-1)[:, None]


def of_lanes(
    parts: Sequence[Part], own: Own, seen: Sequence[int], length: int, query_heads: int
) -> Iterator[tuple[int, int, mx.array]]:
    """For tiles of the queries of parts side by side, where heads share a lane: booleans ``[B, Hq, s, n]``.

    Args:
        own: of each sequence the tokens of the forward that it skipped, and those that it read.
        seen: tokens that each has read.
        length: the forward's tokens.
    """
    heads, (position, head) = in_lanes(parts), _lane_of(parts, length)
    skip, new = (mx.array(of)[:, None, None, None] for of in zip(*own, strict=True))
    start = mx.array([*seen])[:, None, None, None] - new - skip
    for first, last, mask in lanes.masks(position, head, heads, query_heads, start, length):
        query = mx.arange(first, last)[:, None]
        # padding sees everything: a query that sees nothing at all would be NaN
        yield first, last, mask | (query < skip) | (query >= skip + new)


def of_lane(layer: Layer, rows: Sequence[int], query_heads: int) -> list[tuple[int, int, Any]]:
    """Of one token of each sequence of a joined layer: all that the sequence fills, ``rows`` a head."""
    filled = mx.arange(layer.rows.length) < mx.array([n * layer.heads for n in rows])[:, None]
    head = mx.where(filled[:, None], layer.rows.columns["head"], -1)
    return [*lanes.masks(layer.rows.position, head, layer.heads, query_heads, NEVER, 1)]


def _lane_of(parts: Sequence[Part], length: int) -> tuple[mx.array, mx.array]:
    """Of the rows that ``side_by_side`` has in one lane position and head, -1 of padding: ``[B, 1, n]``."""

    def heads(layer: Layer) -> mx.array:
        if layer.heads > 1:
            return layer.rows.columns["head"]
        batch, count, n = layer.rows.position.shape
        return mx.broadcast_to(mx.arange(count, dtype=mx.int32)[:, None], (batch, count, n))

    layers = [part.layer for part in parts]
    position = beside(parts, length, [None if layer is None else layer.rows.position for layer in layers])
    return position, beside(parts, length, [None if layer is None else heads(layer) for layer in layers], -1)
