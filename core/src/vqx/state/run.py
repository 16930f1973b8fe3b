"""Tokens generated between two cuts: each is written where there is room, its query held, and nothing else.

A layer is replaced as a whole at other steps; to do so for each of these would take longer than they do. On a
GPU's host, whose caches a model's forward has emptied, what counts is how little memory a token touches.
"""

from typing import Any

import mlx.core as mx

from vqx.state.joined import padding_later
from vqx.state.layer import Each, Layer, Plan, Waiting, later, slots_later
from vqx.state.positions import STEPS
from vqx.state.rows import Rows

TURNED = 2**24
"""Bytes of a layer's keys up to which those turned to compact positions are held beside them."""

ALL = slice(None)


class Run:
    """What such tokens add to the layer before them; the one that began last can be taken back.

    Where the sequences of a batch differ (``layer.each``), numbers here are the greatest of them.

    Args:
        plan, layer: what they come to.
        left: tokens that it takes.
        shapes: of a token's keys and values, ``[B, H, 1, D]`` and ``[B, H, 1, Dv]``.
        watches: attention shows it the query of each.
    """

    __slots__ = (
        "_each", "_even", "_first", "_keys", "_most", "_packing", "_queries", "_rotary", "_rows", "_scale",
        "_shapes", "_sinks", "_start", "_steps", "_turned", "_values", "_watches", "left", "offset", "read",
    )  # fmt: skip

    last = False  # nothing is decided once it took a token
    evicts = False

    def __init__(self, plan: Plan, layer: Layer, left: int, shapes: tuple[Any, Any], watches: bool) -> None:
        rows, waiting = layer.rows, layer.waiting
        self._keys, self._values = rows.keys, rows.values  # [B, H, capacity, *], as of Rows
        self._each, self._even = layer.each, layer.each is None or layer.each.even
        self._first = self._rows = rows.length
        self._start = layer.tokens_seen
        self._shapes, self._watches = shapes, watches
        self._packing, self._rotary, self._most = plan.packing, plan.rotary, plan.most
        self._queries = [] if waiting is None else [*waiting.queries]  # [B, H * G, 1, D] each
        self._scale, self._sinks = (1.0, None) if waiting is None else (waiting.scale, waiting.sinks)
        steps = rows.columns.get(STEPS) if layer.evicted else None
        self._steps, self._turned = steps, None  # [B, H, capacity] by which keys are turned to be read
        if steps is not None:
            self._steps = mx.pad(steps, [(0, 0), (0, 0), (0, rows.keys.shape[2] - steps.shape[2])])
            if plan.rotary is not None and rows.keys.nbytes <= TURNED:
                # [B, H, capacity, D], keys so turned; the run's own stand nowhere else
                self._turned = plan.rotary.placed(rows.keys, self._steps, self._start, whole=True)
        self.left = left
        self.offset: Any = rows.length if plan.compact else self._start  # for which the next is rotated
        if layer.each is not None:
            self.offset = later(layer.each.tokens_seen, 0)  # [B]
        self.read: mx.array | None = None  # the latest token's keys, while its query is still to be shown

    @property
    def added(self) -> int:
        """Tokens that it took."""
        return self._rows - self._first

    @property
    def rows(self) -> int:
        """Rows filled, of the sequence that has most."""
        return self._rows

    @property
    def end(self) -> int:
        """The position of the next token."""
        return self._start + self.added

    @property
    def each(self) -> Each | None:
        """What there is to say of each sequence, where they differ."""
        return None if self._each is None else self._each.longer(self.added)

    def mask(self, more: int = 0) -> mx.array | None:
        """Which rows of each sequence are filled, after so many tokens more: as of ``joined.padding``."""
        return None if self._each is None or self._even else padding_later(self._each.rows, self.added + more)

    @property
    def turns(self) -> bool:
        """Whether turned keys are held."""
        return self._turned is not None

    def takes(self, keys: mx.array, values: mx.array) -> bool:
        """Whether what comes is one of its tokens."""
        ready, shapes = self.left > 0 and self.read is None, self._shapes
        return ready and keys.shape == shapes[0] and values.shape == shapes[1]

    def now(self) -> tuple[Any, ...]:
        """What it is before a token, for ``go_back``: who holds it keeps rows from being written in place."""
        held = self._queries
        return self._keys, self._values, self._turned, self._rows, held[-1] if held else None

    def go_back(self, before: tuple[Any, ...]) -> None:
        """Be as ``now`` said before the latest token."""
        count = self._rows
        self._keys, self._values, self._turned, self._rows, latest = before
        count -= self._rows
        self.left, self.offset, self.read = self.left + count, self.offset - count, None
        if self._each is not None:
            self.offset = later(self._each.tokens_seen, self.added)
        if self._queries and self._queries[-1] is not latest:
            self._queries.pop()

    def longer(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Take a token, ``[B, H, 1, *]``; what attention reads: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        rows, turned = self._rows, self._turned
        if self._packing is not None:
            key, value = self._packing.packed(key, value)
        # the arrays of before stay as they are; memory is written in place
        keys, values = self._keys if turned is None else turned, self._values
        if self._even or self._each is None:
            keys, values = keys[...], values[...]
            own = (ALL, ALL, slice(rows, rows + 1))
            keys[own], values[own] = key, value
        else:
            slot = slots_later(self._each.rows, rows - self._first, key.shape[1])
            keys = mx.put_along_axis(keys, slot, key, axis=2)
            values = mx.put_along_axis(values, slot, value, axis=2)
        if turned is None:
            self._keys = keys
        else:
            self._turned = keys
        self._values, self._rows = values, rows + 1
        self.offset = self.offset + 1 if self._each is None else later(self._each.tokens_seen, self.added)
        self.left -= 1
        if self._steps is not None and turned is None and self._rotary is not None:
            keys = self._rotary.placed(keys, self._steps, self.end, whole=True)
        if rows + 1 < keys.shape[2]:
            filled = (ALL, ALL, slice(rows + 1))
            keys, values = keys[filled], values[filled]
        if self._packing is not None:
            keys, values = self._packing.unpacked(keys, values)
        if self._watches:
            self.read = keys
        return keys, values

    def asked(self, queries: mx.array, keys: mx.array, scale: float, sinks: mx.array | None) -> bool:
        """Hold the latest token's query, if there is nothing else to do; whether that is so."""
        if not self._watches:
            return True
        held = self._queries
        if not held:
            self._scale, self._sinks = scale, sinks
        if keys is not self.read or sinks is not self._sinks:
            return False
        if self._most:
            del held[: -self._most]  # the last so many are looked at; with one more, none is lost to go_back
        held.append(queries)
        self.read = None
        return True

    def ended(self, layer: Layer) -> Layer:
        """The layer that it makes of the one before it, of which the buffers are its own."""
        rows, waiting, keys, added = layer.rows, layer.waiting, self._keys, self.added
        if self._turned is not None and added:
            own = (ALL, ALL, slice(self._first, self._rows))
            keys = keys[...]
            keys[own] = self._turned[own]
        shown = added - (self.read is not None)
        if self._watches and shown:
            queries = (*self._queries[-self._most :],)
            waiting = Waiting(queries, self._start + shown, self._scale, self._sinks)
        return layer._replace(
            rows=Rows(keys, self._values, rows.position, rows.columns, rows.bare + added),
            tokens_seen=self._start + added,
            last=1,
            generated=layer.generated + added,
            each=self.each,
            waiting=waiting,
        )
