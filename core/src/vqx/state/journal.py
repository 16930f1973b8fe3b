"""What is held of the latest tokens, so that they can be taken back: themselves, and what each changed.

Of a layer that the method has left behind it the keys and values follow from those of the next one and the
rows that went; only its statistics are held as they were.
"""

from typing import NamedTuple

import mlx.core as mx

from vqx.state.layer import Layer
from vqx.state.rows import Gone, apart, filled, going


class Waiting(NamedTuple):
    """The latest tokens, which the method may still have to look at."""

    first: int  # the position of the first
    keys: mx.array  # [B, H, w, D]
    values: mx.array  # [B, H, w, Dv]
    queries: mx.array | None = None  # [B, H * G, w, D]; None where no score reads queries

    def cut(self, first: int, end: int) -> "Waiting":
        """The tokens from position ``first`` to ``end - 1``."""
        now = slice(first - self.first, end - self.first)
        queries = None if self.queries is None else self.queries[:, :, now]
        return Waiting(first, self.keys[:, :, now], self.values[:, :, now], queries)

    def copied(self) -> "Waiting":
        """In arrays of their own: a view would keep those that it was cut from."""
        count = self.keys.shape[2]
        queries = None if self.queries is None else apart(self.queries, 0, count)
        return Waiting(self.first, apart(self.keys, 0, count), apart(self.values, 0, count), queries)

    def joined(self, keys: mx.array, values: mx.array) -> "Waiting":
        """With later tokens, whose queries are yet to come."""
        both = [mx.concatenate([old, new], axis=2) for old, new in ((self.keys, keys), (self.values, values))]
        return self._replace(keys=both[0], values=both[1])


class Before(NamedTuple):
    """What a layer was before the method looked at one token more."""

    layer: Layer | None  # without keys and values
    gone: Gone | None = None  # the rows that the next layer holds no more
    over: bool = False  # the token's own row stands in the place of the one that went

    def behind(self, after: Layer | None) -> Layer | None:
        """The layer with keys and values, where ``after`` is the next one."""
        if self.layer is None or after is None:
            return None
        rows, gone = after.rows, self.gone
        keys, values = rows.keys, rows.values
        if gone is not None and self.over:
            at = mx.argmax(rows.position == after.tokens_seen - 1, axis=2, keepdims=True)[..., None]
            keys, values = (
                mx.put_along_axis(array, at, row, axis=2)
                for array, row in ((keys, gone.keys), (values, gone.values))
            )
        elif gone is not None:
            position = mx.concatenate([rows.position, gone.position], axis=2)
            slots = _slots(position, after.tokens_seen)
            at = mx.take_along_axis(slots, self.layer.rows.position, axis=2)[..., None]
            keys, values = (
                mx.take_along_axis(mx.concatenate([*both], axis=2), at, axis=2)
                for both in zip(filled(rows), (gone.keys, gone.values), strict=True)
            )
        return self.layer._replace(rows=self.layer.rows._replace(keys=keys, values=values))


def between(before: Layer | None, after: Layer) -> Before:
    """What there is to hold of the layer ``before``."""
    if before is None:
        return Before(None)
    gone, many = after.gone, before.size + after.last - after.size
    if gone is None and many:
        seen = _slots(after.rows.position, after.tokens_seen) >= 0
        stays = mx.take_along_axis(seen, before.rows.position, axis=2)
        own = mx.arange(before.size, dtype=mx.int32)
        gone = going(before.rows, mx.argsort(mx.where(stays, own + before.size, own), axis=2)[..., :many])
    nothing = mx.zeros((0,))
    rows = before.rows._replace(keys=nothing, values=nothing)
    return Before(before._replace(rows=rows, gone=None), gone, over=after.gone is not None)


def _slots(position: mx.array, tokens: int) -> mx.array:
    """Where the row of each position stands, ``[B, H, tokens]`` int32; -1 where there is none."""
    batch, heads, n = position.shape
    own = mx.broadcast_to(mx.arange(n, dtype=mx.int32), position.shape)
    return mx.put_along_axis(mx.full((batch, heads, tokens), -1, mx.int32), position, own, axis=2)
