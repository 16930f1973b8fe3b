"""What one launch decided for the next token of several layers, and a layer while it is decided for so.

The layers' positions and statistics stand in arrays that all of them share.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx.state.layer import Layer, Seen, Waiting
from vqx.state.positions import Rotary
from vqx.state.rows import Rows, first


class Decision(NamedTuple):
    """Where the next token of every layer goes, and the rows once it stands there."""

    position: mx.array  # [L * B, H, n]
    columns: Mapping[str, mx.array]  # each [L * B, H, n]
    slots: Sequence[mx.array] = ()  # L arrays [B, H, 1, 1]; none where the rows are as they came
    end: int = -1  # the token's position
    steps: Sequence[mx.array] = ()  # L arrays [B, H, n] by which keys are turned to be read, if they are
    turned: dict[int, mx.array] = {}  # noqa: RUF012
    """By layer the keys so turned, ``[B, H, n, D]``; each is taken once, to be written in place."""


def as_they_are(layers: Sequence[Layer]) -> Decision:
    """The rows of layers made alike, side by side."""
    held = [layer.rows for layer in layers]
    columns = {name: mx.concatenate([rows.columns[name] for rows in held]) for name in held[0].columns}
    return Decision(mx.concatenate([rows.position for rows in held]), columns)


class Seat(NamedTuple):
    """One layer while its council decides: what was added to the layer before, as of ``vqx.state.run``."""

    council: Any
    place: int
    keys: mx.array  # [B, H, capacity, D]
    values: mx.array  # [B, H, capacity, Dv]
    rows: int
    end: int
    added: int
    held: Decision  # what says how the rows are
    scale: float
    query: mx.array | None  # [B, H * G, 1, D], the latest one shown
    shown: bool  # it is the latest token's
    turned: mx.array | None = None  # [B, H, n, D], the keys as attention reads them; None: not held

    @property
    def kept(self) -> int:
        """Rows that remain for the next token."""
        return self.rows - 1

    def exchanged(self, ahead: Decision, key: mx.array, value: mx.array) -> "Seat":
        """With the token, ``[B, H, 1, D]``, over the row that goes."""
        council, place, keys, values, rows, end, added, _, scale, query, *_ = self
        slot, turned = ahead.slots[place], ahead.turned.pop(place, None)
        if turned is not None:
            turned = mx.put_along_axis(turned, slot, key, axis=2)
        keys = mx.put_along_axis(keys, slot, key, axis=2)
        values = mx.put_along_axis(values, slot, value, axis=2)
        return Seat(
            council, place, keys, values, rows, end + 1, added + 1, ahead, scale, query, False, turned
        )

    def filled(self, rotary: Rotary | None) -> tuple[mx.array, mx.array]:
        """What attention reads: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        if self.turned is not None:
            return first(self.turned, self.values, self.rows)
        keys, values = first(self.keys, self.values, self.rows)
        if rotary is not None and self.held.steps:
            keys = rotary.placed(keys, self.held.steps[self.place], self.end, whole=True)
        return keys, values

    def asked(self, queries: mx.array) -> "Seat":
        """With the query of its latest token."""
        return Seat(*self[:9], queries, True)

    def ended(self, layer: Layer) -> Layer:
        """The layer that it makes of the one before it, of which the buffers are its own."""
        batch, heads = self.keys.shape[:2]
        own = slice(self.place * batch, (self.place + 1) * batch)
        columns = {name: column[own] for name, column in self.held.columns.items()}
        seen, waiting = layer.seen, None
        if self.query is not None and self.shown:
            waiting = Waiting((self.query,), self.end, self.scale, None)
        elif self.query is not None and seen is not None:
            origin = None if seen.origin is None else np.array([[self.kept]], np.int32)
            latest = self.query.reshape(batch, heads, -1, 1, self.query.shape[3])
            seen = Seen(latest, self.scale, origin=origin)
        return layer._replace(
            rows=Rows(self.keys, self.values, self.held.position[own], columns),
            tokens_seen=self.end,
            generated=layer.generated + self.added,
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
