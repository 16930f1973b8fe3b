"""Layers for which one launch decides: made alike, they are more sequences of one layer.

To ask a GPU for a launch takes its host longer than the GPU works on it, and a token asks once, not once a
layer. Layers that differ, and devices without such kernels, go by ``vqx.state.exchange``, which this equals.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from vqx import kernels
from vqx.state.layer import Layer, Plan, Seen, Waiting
from vqx.state.rows import Rows


class Decision(NamedTuple):
    """Where the next token of every layer goes, and the rows once it stands there."""

    position: mx.array  # [L * B, H, n]
    columns: Mapping[str, mx.array]  # each [L * B, H, n]
    slots: Sequence[mx.array] = ()  # L arrays [B, H, 1, 1]; none where the rows are as they came
    end: int = -1  # the token's position


class Seat(NamedTuple):
    """One layer while its council decides: what was added to the layer before, as of ``vqx.state.run``."""

    council: "Council"
    place: int
    keys: mx.array  # [B, H, capacity, D]
    values: mx.array  # [B, H, capacity, Dv]
    rows: int
    added: int
    held: Decision  # what says how the rows are
    scale: float
    query: mx.array | None  # [B, H * G, 1, D], the latest one shown
    shown: bool  # it is the latest token's

    def exchanged(self, ahead: Decision, key: mx.array, value: mx.array) -> "Seat":
        """With the token, ``[B, H, 1, D]``, over the row that goes."""
        council, place, keys, values, rows, added, _, scale, query, _ = self
        slot = ahead.slots[place]
        keys = mx.put_along_axis(keys, slot, key, axis=2)
        values = mx.put_along_axis(values, slot, value, axis=2)
        return Seat(council, place, keys, values, rows, added + 1, ahead, scale, query, False)

    def filled(self) -> tuple[mx.array, mx.array]:
        """What attention reads: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        if self.rows == self.keys.shape[2]:
            return self.keys, self.values
        return self.keys[:, :, : self.rows], self.values[:, :, : self.rows]

    def asked(self, queries: mx.array) -> "Seat":
        """With the query of its latest token."""
        return Seat(*self[:8], queries, True)

    def ended(self, layer: Layer) -> Layer:
        """The layer that it makes of the one before it, of which the buffers are its own."""
        batch, heads = self.keys.shape[:2]
        own = slice(self.place * batch, (self.place + 1) * batch)
        columns = {name: column[own] for name, column in self.held.columns.items()}
        end, seen, waiting = layer.tokens_seen + self.added, layer.seen, None
        if self.query is not None and self.shown:
            waiting = Waiting((self.query,), end, self.scale, None)
        elif self.query is not None and seen is not None:
            seen = Seen(self.query.reshape(batch, heads, -1, 1, self.query.shape[3]), self.scale)
        return layer._replace(
            rows=Rows(self.keys, self.values, self.held.position[own], columns),
            tokens_seen=end,
            generated=layer.generated + self.added,
            last=1,
            evicted=layer.evicted or self.added > 0,
            seen=seen,
            waiting=waiting,
            ahead=None,
            written=None,
        )


class Council:
    """The layers of one list of caches, and what was decided for their next token."""

    def __init__(self) -> None:
        self.ahead: Decision | None = None
        self.loose: list[mx.array] = []  # arrays of a decision that no logits need yet
        self._heard: dict[int, Any] = {}
        self._end = -1
        self._apart = False

    def for_next(self, end: int) -> Decision | None:
        """What was decided for the token at ``end``."""
        return self.ahead if self.ahead is not None and self.ahead.end == end else None

    def tied(self) -> list[mx.array]:
        """The arrays of a decision that no logits need yet, said once."""
        loose, self.loose = self.loose, []
        return loose

    def hear(self, cache: Any, end: int, count: int) -> None:
        """A cache has read the token before ``end``, and seen its query; once all ``count`` have, decide."""
        if end != self._end:
            self._heard, self._end = {}, end
        self._heard[cache.number] = cache
        if len(self._heard) == count:
            caches = [self._heard[number] for number in sorted(self._heard)]
            self._heard, self._end = {}, -1
            self._decide(caches, end)

    def serves(self, plan: Plan, layer: Layer) -> bool:
        """Whether a layer may be one of those that are decided for together."""
        method, options = plan.method, plan.options
        if self._apart or options.interval > 1 or options.undo or not plan.defers or layer.each is not None:
            return False
        if plan.packing is not None or plan.rotary is not None or plan.across is not None:
            return False
        plain = method.merge is None and method.share is None and method.scorer.note is None
        lone = layer.heads == 1 and layer.last == 1 and not layer.rows.bare
        if not plain or not lone or method.scorer.window > 1 or layer.size != method.budget + 1:
            return False
        if layer.seen is not None and layer.seen.logits:
            return False
        waiting = layer.waiting
        asks = method.scorer.reads_queries
        right = not asks or (waiting is not None and len(waiting.queries) == 1 and waiting.sinks is None)
        return right and kernels.target() in ("cuda", "host")

    def _decide(self, caches: Sequence[Any], end: int) -> None:
        seats = [cache.seat for cache in caches]
        if any(seat is None or seat.held is not seats[0].held for seat in seats):
            seats = self._seated(caches)
        if not seats:
            self._apart = True
            return
        first, method = seats[0], caches[0].plan.method
        asks = method.scorer.reads_queries
        found = kernels.together(
            method,
            first.held.columns,
            kernels.Layers(
                [seat.query for seat in seats] if asks else [],
                [seat.keys for seat in seats],
                first.held.position,
                end - 1,
                first.scale,
                caches[0].generated - 1,
            ),
        )
        if found is None or found.position is None or len(found.columns) < len(first.held.columns):
            self._apart, self.ahead = True, None
            return
        slots = [*mx.split(found.slot, len(seats))]
        self.ahead = Decision(found.position, found.columns, slots, end)
        self.loose = [found.slot, found.position, *found.columns.values()]

    def _seated(self, caches: Sequence[Any]) -> list[Seat]:
        """A seat for each; none where the layers are not alike."""
        layers = [cache.as_it_is for cache in caches]
        if len(layers) < 2 or len({id(cache.plan.method) for cache in caches}) > 1:
            return []
        if len(set(map(_shape, layers))) > 1 or len({cache.plan.options for cache in caches}) > 1:
            return []
        names = layers[0].rows.columns
        position = mx.concatenate([layer.rows.position for layer in layers])
        columns = {name: mx.concatenate([layer.rows.columns[name] for layer in layers]) for name in names}
        held, seats = Decision(position, columns), []
        for place, layer in enumerate(layers):
            rows, waiting = layer.rows, layer.waiting
            query, scale = (None, 1.0) if waiting is None else (waiting.queries[0], waiting.scale)
            seat = Seat(self, place, rows.keys, rows.values, rows.length, 0, held, scale, query, True)
            seats.append(seat)
        for cache, seat in zip(caches, seats, strict=True):
            cache.seat = seat
        return seats


def seated(layer: Layer) -> Layer:
    """What a cache holds of a layer that has a seat: its counts."""
    return layer._replace(rows=Rows(_NOTHING, _NOTHING, _NOTHING, {}), waiting=None, ahead=None, written=None)


_NOTHING = mx.zeros((0,))


def _shape(layer: Layer) -> Any:
    """What has to be the same of all layers."""
    rows, waiting = layer.rows, layer.waiting
    asked = None if waiting is None else (waiting.queries[0].shape, waiting.queries[0].dtype, waiting.scale)
    columns = tuple((name, column.shape, column.dtype) for name, column in rows.columns.items())
    own = (rows.keys.shape, rows.keys.dtype, rows.position.shape, columns)
    return (*own, asked, layer.tokens_seen, layer.generated)
