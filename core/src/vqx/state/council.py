"""Layers for which one launch decides: made alike, they are more sequences of one layer.

To ask a GPU for a launch takes its host longer than the GPU works on it, and a token asks once, not once a
layer. Layers that differ, and devices without such kernels, go by ``vqx.state.exchange``, which this equals.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from vqx import kernels
from vqx.scorers import Arrivals, Scorer
from vqx.state.exchange import decided
from vqx.state.layer import Ahead, Layer, Plan, Seen, Waiting, in_place
from vqx.state.rows import Rows, apart


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
    end: int
    added: int
    held: Decision  # what says how the rows are
    scale: float
    query: mx.array | None  # [B, H * G, 1, D], the latest one shown
    shown: bool  # it is the latest token's

    def exchanged(self, ahead: Decision, key: mx.array, value: mx.array) -> "Seat":
        """With the token, ``[B, H, 1, D]``, over the row that goes."""
        council, place, keys, values, rows, end, added, _, scale, query, _ = self
        slot = ahead.slots[place]
        keys = mx.put_along_axis(keys, slot, key, axis=2)
        values = mx.put_along_axis(values, slot, value, axis=2)
        return Seat(council, place, keys, values, rows, end + 1, added + 1, ahead, scale, query, False)

    def filled(self) -> tuple[mx.array, mx.array]:
        """What attention reads: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        if self.rows == self.keys.shape[2]:
            return self.keys, self.values
        return self.keys[:, :, : self.rows], self.values[:, :, : self.rows]

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
            seen = Seen(self.query.reshape(batch, heads, -1, 1, self.query.shape[3]), self.scale)
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
            one = caches[0].plan.options.interval == 1
            if not (self._decide(caches, end) if one else self._cut(caches, end)):
                self._alone(caches)

    def serves(self, plan: Plan, layer: Layer) -> bool:
        """Whether a layer may be one of those that are decided for together."""
        method, options, waiting = plan.method, plan.options, layer.waiting
        if self._apart or options.undo or not plan.defers or layer.each is not None or layer.heads > 1:
            return False
        if plan.packing is not None or plan.rotary is not None or plan.across is not None:
            return False
        if method.merge is not None or method.share is not None or method.scorer.window > 1:
            return False
        if layer.last > 1 or (layer.seen is not None and layer.seen.logits):
            return False
        ready = in_place(plan, layer, 1) if options.interval > 1 else layer.size == method.budget + 1
        count = 0 if waiting is None or waiting.sinks is not None else len(waiting.queries)
        if method.scorer.reads_queries and not count:
            return False
        alone = not layer.rows.bare and count <= 1
        return ready and (alone or options.interval > 1) and kernels.target() in ("cuda", "host")

    def _alone(self, caches: Sequence[Any]) -> None:
        """Let every layer decide for itself."""
        for cache in caches:
            ahead = decided(cache.plan, cache.as_it_is)
            if ahead is not None:
                cache.foresee(ahead)
                self.loose += ahead.carried

    def _decide(self, caches: Sequence[Any], end: int) -> bool:
        """Say which row goes; False: not for all together."""
        seats = [cache.seat for cache in caches]
        if any(seat is None or seat.held is not seats[0].held for seat in seats):
            seats = self._seated(caches)
        if not seats:
            return False
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
            return False
        slots = [*mx.split(found.slot, len(seats))]
        self.ahead = Decision(found.position, found.columns, slots, end)
        self.loose = [found.slot, found.position, *found.columns.values()]
        return True

    def _cut(self, caches: Sequence[Any], end: int) -> bool:
        """Say which rows of many stay; False: not for all together."""
        layers, plan = [cache.as_it_is for cache in caches], caches[0].plan
        if not self._alike(caches, layers):
            return False
        dressed = _dressed(plan.method.scorer, layers)
        first, asks, keep = layers[0], plan.method.scorer.reads_queries, plan.method.budget
        waiting = first.waiting
        queries = [_joined(layer.waiting.queries) for layer in layers] if asks else []
        count = queries[0].shape[2] if queries else 1
        stay = (
            None
            if dressed is None
            else kernels.kept_together(
                plan.method,
                dressed.columns,
                kernels.Layers(
                    queries,
                    [layer.rows.keys for layer in layers],
                    dressed.position,
                    end - count,
                    1.0 if waiting is None else waiting.scale,
                    max(first.generated - count, 0),
                ),
                keep,
            )
        )
        if stay is None:
            self._apart = True
            return False
        number, n = len(layers), first.rows.length
        slots, position = mx.split(stay.slots, number), mx.split(stay.position, number)
        columns = {name: mx.split(column, number) for name, column in stay.columns.items()}
        self.loose = [stay.slots, stay.position, *stay.columns.values()]
        for place, (cache, layer) in enumerate(zip(caches, layers, strict=True)):
            rows = layer.rows
            late = [apart(buffer, keep, n) for buffer in (rows.keys, rows.values)]
            left = layer._replace(waiting=None)
            if asks and plan.method.scorer.window:
                latest = queries[place][:, :, -1:]
                batch, heads = rows.keys.shape[:2]
                left = left._replace(
                    seen=Seen(latest.reshape(batch, heads, -1, 1, latest.shape[3]), layer.waiting.scale)
                )
            own = {name: column[place] for name, column in columns.items()}
            what = kernels.Kept(slots[place], position[place], own)
            cache.foresee(Ahead(left, what, late))
            self.loose += late
        return True

    def _alike(self, caches: Sequence[Any], layers: Sequence[Layer]) -> bool:
        """Whether layers can be sequences of one now."""
        plans = [cache.plan for cache in caches]
        one = len({id(plan.method) for plan in plans}) == 1 and len({plan.options for plan in plans}) == 1
        self._apart = self._apart or not one or len(plans) < 2
        return not self._apart and len(set(map(_shape, layers))) == 1

    def _seated(self, caches: Sequence[Any]) -> list[Seat]:
        """A seat for each; none where the layers are not alike."""
        layers = [cache.as_it_is for cache in caches]
        if not self._alike(caches, layers):
            return []
        names = layers[0].rows.columns
        position = mx.concatenate([layer.rows.position for layer in layers])
        columns = {name: mx.concatenate([layer.rows.columns[name] for layer in layers]) for name in names}
        held, seats = Decision(position, columns), []
        for place, layer in enumerate(layers):
            rows, waiting = layer.rows, layer.waiting
            query, scale = (None, 1.0) if waiting is None else (waiting.queries[0], waiting.scale)
            counts = rows.length, layer.tokens_seen, 0
            seats.append(Seat(self, place, rows.keys, rows.values, *counts, held, scale, query, True))
        for cache, seat in zip(caches, seats, strict=True):
            cache.seat = seat
        return seats


def seated(layer: Layer) -> Layer:
    """What a cache holds of a layer that has a seat: its counts."""
    return layer._replace(rows=Rows(_NOTHING, _NOTHING, _NOTHING, {}), waiting=None, ahead=None, written=None)


_NOTHING = mx.zeros((0,))


class _Shaped(NamedTuple):
    """What is known of rows that nobody has put side by side."""

    shape: tuple[int, ...]


def _joined(queries: Sequence[mx.array]) -> mx.array:
    return queries[0] if len(queries) == 1 else mx.concatenate([*queries], axis=2)


def _dressed(scorer: Scorer, layers: Sequence[Layer]) -> Decision | None:
    """Positions and statistics of all rows, the bare ones among them; None: these take rows to tell."""
    rows, start = layers[0].rows, layers[0].tokens_seen - layers[0].rows.bare
    batch, heads, _ = shape = (len(layers) * rows.position.shape[0], *rows.position.shape[1:])
    position = mx.concatenate([layer.rows.position for layer in layers])
    columns = {name: mx.concatenate([layer.rows.columns[name] for layer in layers]) for name in rows.columns}
    if not rows.bare:
        return Decision(position, columns)
    like = _Shaped((batch, heads, rows.bare, rows.keys.shape[3]))
    try:
        late = scorer.init(Arrivals(like, like, start))
    except AttributeError:
        return None
    if any(column.shape != (*shape[:2], rows.bare) for column in late.values()):
        return None
    new = mx.broadcast_to(mx.arange(start, start + rows.bare, dtype=mx.int32), (batch, heads, rows.bare))
    columns = {k: mx.concatenate([c, mx.array(late[k])], axis=2) for k, c in columns.items()}
    return Decision(mx.concatenate([position, new], axis=2), columns)


def _shape(layer: Layer) -> Any:
    """What has to be the same of all layers."""
    rows, waiting = layer.rows, layer.waiting
    asked = None
    if waiting is not None:
        first = waiting.queries[0]
        asked = (len(waiting.queries), waiting.end, first.shape, first.dtype, waiting.scale)
    columns = tuple((name, column.shape, column.dtype) for name, column in rows.columns.items())
    own = (rows.keys.shape, rows.keys.dtype, rows.position.shape, columns)
    return (*own, rows.bare, asked, layer.tokens_seen, layer.generated)
