"""What one launch decided for the next token of several layers, and a layer while it is decided for so.

The layers' positions and statistics stand in arrays that all of them share.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx.state.layer import Each, Layer, Plan, Seen, Waiting, later
from vqx.state.rows import Rows, first
from vqx.state.windows import Windows


class Decision(NamedTuple):
    """Where the next token of every layer goes, and the rows once it stands there."""

    position: mx.array  # [L * B, H, n]
    columns: Mapping[str, mx.array]  # each [L * B, H, n]
    slots: Sequence[mx.array] = ()  # L arrays [B, H, 1, 1]; none where the rows are as they came
    end: int = -1  # the token's position
    steps: Sequence[mx.array] = ()  # L arrays [B, H, n] by which keys are turned to be read, if they are
    turned: dict[int, mx.array] = {}  # noqa: RUF012
    """By layer the keys so turned, ``[B, H, n, D]``; each is taken once, to be written in place."""
    asked: Windows | None = None  # where a score looks at several queries: those before the seats' own


def as_they_are(layers: Sequence[Layer]) -> Decision:
    """The rows of layers made alike, side by side."""
    held = [layer.rows for layer in layers]
    columns = {name: mx.concatenate([rows.columns[name] for rows in held]) for name in held[0].columns}
    return Decision(mx.concatenate([rows.position for rows in held]), columns)


class Seat:
    """One layer while its council decides: what was added to the layer before, as of ``vqx.state.run``.

    Args:
        council, place, last: which decides, for which of its layers, and whether none comes after it.
        plan, layer: what stays the same, and what it was before.
        held: what says how the rows of all are.
        shapes, watches: as of ``vqx.state.run.Run``.
    """

    __slots__ = (
        "_council", "_each", "_generated", "_rotary", "_shapes", "_start", "_values", "_watches", "compact",
        "end", "held", "keys", "last", "offset", "place", "query", "read", "rows", "scale", "turned",
    )  # fmt: skip

    left = 0  # tokens that it takes whatever is decided
    evicts = True  # each of its tokens stands where another's row was

    def __init__(
        self,
        council: Any,
        place: int,
        last: bool,
        plan: Plan,
        layer: Layer,
        held: Decision,
        shapes: tuple[Any, Any],
        watches: bool,
    ) -> None:
        rows, waiting = layer.rows, layer.waiting
        self._council, self.place, self.last, self.held = council, place, last, held
        self._shapes, self._watches = shapes, watches
        self._rotary, self.compact = plan.rotary, plan.compact
        self.keys, self._values, self.rows = rows.keys, rows.values, rows.length  # [B, H, capacity, *]
        self._start = self.end = layer.tokens_seen  # of the next token; the greatest of a batch
        self._generated, self._each = layer.generated, layer.each
        self.offset: Any = rows.length - 1 if plan.compact else self.end  # for which that is rotated
        if layer.each is not None:
            self.offset = later(layer.each.tokens_seen, 0)  # [B]
        # [B, H * G, 1, D], the latest one shown
        self.query: mx.array | None = None if waiting is None else waiting.queries[0]
        self.scale = 1.0 if waiting is None else waiting.scale
        self.turned: mx.array | None = None  # keys as attention read them, where no others would do
        self.read: mx.array | None = None  # the latest token's keys, while its query is still to be shown

    @property
    def added(self) -> int:
        """Tokens that it took."""
        return self.end - self._start

    @property
    def each(self) -> Each | None:
        """What there is to say of each sequence of a batch, where they differ."""
        return None if self._each is None else self._each.longer(self.added, rows=0)

    def mask(self, more: int = 0) -> None:
        """There is no padding: as of ``vqx.state.run.Run``."""

    def asks(self, count: int) -> tuple[int | tuple[int, ...], int | tuple[int, ...]]:
        """The position of the first of the latest ``count`` tokens, and tokens generated before it.

        Of each sequence of a batch, where they differ.
        """
        each = self.each
        if each is None:
            return self.end - count, max(self._generated + self.added - count, 0)
        return tuple([n - count for n in each.tokens_seen]), tuple(
            [max(n - count, 0) for n in each.generated]
        )

    def takes(self, keys: mx.array, values: mx.array) -> bool:
        """Whether what comes is a token that was decided for."""
        ahead, shapes = self._council.ahead, self._shapes
        ready = ahead is not None and ahead.end == self.end and self.read is None
        return ready and keys.shape == shapes[0] and values.shape == shapes[1]

    def now(self) -> tuple[Any, ...]:
        """What it is before a token, for ``go_back``: who holds it keeps rows from being written in place."""
        return self.keys, self._values, self.end, self.offset, self.held, self.query

    def go_back(self, before: tuple[Any, ...]) -> None:
        """Be as ``now`` said before the latest token."""
        self.keys, self._values, self.end, self.offset, self.held, self.query = before
        self.read = self.turned = None

    def longer(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Take a token, ``[B, H, 1, *]``, over the row that goes; what attention reads: ``[B, H, n, *]``."""
        place, ahead, n = self.place, self._council.ahead, self.rows
        slot = ahead.slots[place]
        keys = mx.put_along_axis(self.keys, slot, key, axis=2)
        values = mx.put_along_axis(self._values, slot, value, axis=2)
        self.keys, self._values, self.held = keys, values, ahead
        self.end += 1
        turned = ahead.turned.pop(place, None) if self.compact else None
        if turned is not None:
            keys = mx.put_along_axis(turned, slot, key, axis=2)
        if n < keys.shape[2]:
            keys, values = first(keys, values, n)
        if self._each is not None:
            self.offset = later(self._each.tokens_seen, self.added)
        elif not self.compact:
            self.offset += 1
        elif turned is None and self._rotary is not None:
            keys = self._rotary.placed(keys, ahead.steps[place], self.end, whole=True)
        if self.compact:
            self.turned = keys
        if self._watches:
            self.read = keys
        return keys, values

    def asked(self, queries: mx.array, keys: mx.array, scale: float, sinks: mx.array | None) -> bool:
        """Hold the latest token's query, if there is nothing else to do; whether that is so."""
        if not self._watches:
            return True
        if keys is not self.read or sinks is not None:
            return False
        self.query, self.read = queries, None
        return True

    def ended(self, layer: Layer) -> Layer:
        """The layer that it makes of the one before it, of which the buffers are its own."""
        batch, heads = self.keys.shape[:2]
        own = slice(self.place * batch, (self.place + 1) * batch)
        columns = {name: column[own] for name, column in self.held.columns.items()}
        seen, waiting = layer.seen, None
        if self.held.asked is not None:
            seen = self.held.asked.seen(self.place, batch, heads)
        if self.query is not None and self.read is None:
            waiting = Waiting((self.query,), self.end, self.scale, None)
        elif self.query is not None and seen is not None and self.held.asked is None:
            origin = None if seen.origin is None else np.array([[self.rows - 1]], np.int32)
            latest = self.query.reshape(batch, heads, -1, 1, self.query.shape[3])
            seen = Seen(latest, self.scale, origin=origin)
        return layer._replace(
            rows=Rows(self.keys, self._values, self.held.position[own], columns),
            tokens_seen=self.end,
            generated=layer.generated + self.added,
            each=self.each,
            last=1,
            evicted=layer.evicted or self.added > 0,
            seen=seen,
            waiting=waiting,
            ahead=None,
            written=None,
        )


def seated(layer: Layer) -> Layer:
    """What a cache holds of a layer that has a seat: its counts."""
    return layer._replace(rows=Rows(_NOTHING, _NOTHING, _NOTHING, {}), waiting=None, ahead=None, written=None)


_NOTHING = mx.zeros((0,))
