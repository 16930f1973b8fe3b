"""Layers for which one launch decides: made alike, they are more sequences of one layer.

To ask a GPU for a launch takes its host longer than the GPU works on it, and a token asks once, not once a
layer. Layers that differ, and devices without such kernels, go by ``vqx.state.exchange``, which this equals.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from vqx import kernels
from vqx.scorers import Method
from vqx.state import constants
from vqx.state.cuts import cut, groups
from vqx.state.exchange import decided
from vqx.state.layer import Each, Layer, Plan
from vqx.state.positions import STEPS, statistics, steps_over
from vqx.state.seats import Decision, Seat, as_they_are
from vqx.state.settling import in_place
from vqx.state.windows import windows

TURNED = 2**28
"""Bytes of keys turned to compact positions that may be held: all layers' until the last has read its own,
and all layers' for the next token."""


class Council:
    """The layers of one list of caches, and what was decided for their next token."""

    def __init__(self) -> None:
        self.ahead: Decision | None = None
        self.loose: list[mx.array] = []  # arrays of a decision that no logits need yet
        self._heard: dict[int, tuple[Any, mx.array | None]] = {}
        self._end = -1
        self._apart = False
        self._one = False  # whether the layers have one rotary embedding

    def tied(self) -> list[mx.array]:
        """The arrays of a decision that no logits need yet, said once."""
        loose, self.loose = self.loose, []
        return loose

    def hear(self, cache: Any, end: int, count: int, keys: mx.array) -> None:
        """A cache has read the token before ``end``, and seen its query; once all ``count`` have, decide.

        ``keys`` are what attention read, which a score looks at where they were turned.
        """
        if end != self._end:
            # a layer of the list never came; where some have seats, it may be one that nobody looked at
            self._apart = self._apart or (bool(self._heard) and self.ahead is None)
            self._heard, self._end = {}, end
        self._heard[cache.number] = cache, keys if cache.plan.compact else None
        if len(self._heard) == count:
            caches, turned = zip(*(self._heard[number] for number in sorted(self._heard)), strict=True)
            self._heard, self._end = {}, -1
            plan, layer = caches[0].plan, caches[0].as_it_is
            decide = self._seated if _of_each(plan, layer) else self._cut
            if not self.serves(plan, layer) or not decide(caches, turned, end):
                self._alone(caches)

    def go_on(self, caches: Sequence[Any]) -> None:
        """The last of the caches has read its token from its seat: decide, if all others have from theirs.

        Else each decides for itself when its next token comes, and they take seats anew.
        """
        seats = [cache.seat for cache in caches]
        for place, seat in enumerate(seats):
            if seat is None or seat.place != place or seat.held is not self.ahead or seat.read is not None:
                return
        self._decide(caches, seats)

    def serves(self, plan: Plan, layer: Layer) -> bool:
        """Whether a layer may be one of those that are decided for together."""
        method, options, waiting = plan.method, plan.options, layer.waiting
        if self._apart or options.undo or not plan.defers or layer.heads > 1:
            return False
        if layer.each is not None and not _abreast(plan, layer, layer.each):
            return False
        if plan.packing is not None or plan.across is not None or method.scorer.rotary:
            return False
        if method.merge is not None or method.share is not None or not _shown(plan, layer):
            return False
        if layer.last > 1 or (layer.seen is not None and layer.seen.logits):
            return False
        count = 0 if waiting is None or waiting.sinks is not None else len(waiting.queries)
        if method.scorer.reads_queries and not count:
            return False
        if _of_each(plan, layer):
            ready = layer.size == method.budget + 1 and not layer.rows.bare and count <= 1
        else:
            ready = in_place(plan, layer, 1)
        return ready and kernels.target() in ("cuda", "host")

    def _alone(self, caches: Sequence[Any]) -> None:
        """Let every layer decide for itself."""
        for cache in caches:
            ahead = decided(cache.plan, cache.as_it_is)
            if ahead is not None:
                cache.foresee(ahead)
                self.loose += ahead.carried

    def _seated(self, caches: Sequence[Any], turned: Sequence[mx.array | None], end: int) -> bool:
        """Have each take a seat, and say which row goes; False: not for all together."""
        layers = [cache.as_it_is for cache in caches]
        if not self._alike(caches, layers) or self._too_much(caches[0].plan, layers):
            return False
        rotary = caches[0].plan.rotary
        self._one = all(cache.plan.rotary is rotary for cache in caches)
        held, last = as_they_are(layers), len(layers) - 1
        if caches[0].plan.method.scorer.window > 1:
            held = held._replace(asked=windows(layers))
            if held.asked is not None and held.asked.origin is not None and not self._one:
                self._apart = True
                return False
        seats = [cache.sit(self, place, place == last, held) for place, cache in enumerate(caches)]
        for seat, keys in zip(seats, turned, strict=True):
            seat.turned = keys
        return self._decide(caches, seats)

    def _decide(self, caches: Sequence[Any], seats: Sequence[Seat]) -> bool:
        """Say which row goes, of caches made alike; False: not for all together."""
        cache, first = caches[0], seats[0]
        method, rotary, held, end = cache.plan.method, cache.plan.rotary, first.held, first.end
        columns, asked = statistics(held.columns), held.asked
        queries = [seat.query for seat in seats if seat.query is not None]
        if asked is not None:
            asked = asked.longer(queries, first.rows)
            queries = [asked.placed(rotary, first.rows)]
        count = queries[0].shape[2] if queries else 1
        start, generated = first.asks(count)
        keys = [seat.keys if seat.turned is None else seat.turned for seat in seats]
        layers = kernels.Layers(queries, keys, held.position, start, first.scale, generated)
        found = kernels.together(method, columns, layers)
        new = None if found is None else _new(caches, first, columns, found)
        if found is None or new is None:
            self._apart, self.ahead = True, None
            return False
        slots, slot, steps = [*mx.split(found.slot, len(seats))], found.slot[..., 0], []
        columns, position = {**columns, **found.columns}, found.position
        columns |= {name: mx.put_along_axis(columns[name], slot, one, axis=2) for name, one in new.items()}
        if position is None:
            place = mx.array(layers.end, mx.int32).reshape(-1, 1, 1)
            position = mx.put_along_axis(held.position, slot, mx.broadcast_to(place, slot.shape), axis=2)
        placed: list[mx.array] = []
        if STEPS in held.columns:
            moved = steps_over(held.position, held.columns[STEPS], slot)
            columns[STEPS] = mx.put_along_axis(moved, slot, mx.array(0, moved.dtype), axis=2)
            steps = [*mx.split(columns[STEPS], len(seats))]
            if self._one:
                placed = rotary.placed_together([seat.keys for seat in seats], columns[STEPS], end) or []
            for seat in seats:
                seat.turned = None
        turned = dict(enumerate(placed))
        self.ahead = Decision(position, columns, slots, end, steps, turned, asked)
        self.loose = [slots[0], position, *columns.values(), *placed[:1]]
        return True

    def _cut(self, caches: Sequence[Any], turned: Sequence[mx.array | None], end: int) -> bool:
        """Say which rows of many stay; False: not for all together."""
        layers, plan = [cache.as_it_is for cache in caches], caches[0].plan
        if not self._alike(caches, layers) or self._too_much(plan, layers):
            return False
        size = -(-len(layers) // groups(plan, layers))
        if size < 2:
            return False
        for first in range(0, len(layers), size):
            some, read = layers[first : first + size], turned[first : first + size]
            plans = [cache.plan for cache in caches[first : first + size]]
            found = cut(plans, some, read, end) if len(some) > 1 else [decided(plan, some[0])]
            if found is None:
                self._apart = True
                return False
            for cache, ahead in zip(caches[first:], found, strict=False):
                if ahead is not None:
                    cache.foresee(ahead)
                    own = [] if ahead.what.position is None else [ahead.what.position]
                    if ahead.layer.seen is not None and plan.method.scorer.window > 1:
                        own += ahead.layer.seen.arrays
                    self.loose += [*ahead.carried, *own, *ahead.what.columns.values()]
        return True

    def _alike(self, caches: Sequence[Any], layers: Sequence[Layer]) -> bool:
        """Whether layers can be sequences of one now."""
        plans = [cache.plan for cache in caches]
        method, options = plans[0].method, [plan.options for plan in plans]
        one = all(_one(plan.method, method) for plan in plans) and options == options[:1] * len(plans)
        self._apart = self._apart or not one or len(plans) < 2
        return not self._apart and len(set(map(_shape, layers))) == 1

    def _too_much(self, plan: Plan, layers: Sequence[Layer]) -> bool:
        """Whether turned keys of all layers are more than may be held."""
        much = plan.compact and sum(layer.rows.keys.nbytes for layer in layers) > TURNED
        self._apart = self._apart or much
        return much


def _of_each(plan: Plan, layer: Layer) -> bool:
    """Whether one row of every sequence goes for a token, and not of some of them alone."""
    return plan.options.interval == 1 and (layer.each is None or layer.each.even)


def _shown(plan: Plan, layer: Layer) -> bool:
    """Whether as many queries are known as a score looks at, where these are several."""
    scorer, seen, waiting = plan.method.scorer, layer.seen, layer.waiting
    if scorer.window < 2:
        return True
    if scorer.observe is not None or scorer.note is not None or waiting is None:
        return False
    if len(waiting.queries) == scorer.window:
        return True
    if seen is None or seen.sinks is not None or seen.scale != waiting.scale:
        return False
    return seen.queries.shape[3] == scorer.window


def _abreast(plan: Plan, layer: Layer, each: Each) -> bool:
    """Whether the sequences of a batch are looked at by the same numbers, and all have shown enough."""
    shown = plan.defers_apart and min(each.tokens_seen) > plan.method.scorer.window
    count = 1 if layer.waiting is None else len(layer.waiting.queries)
    return shown and kernels.agree(plan.method, each.tokens_seen, each.generated, count)


def _one(method: Method, other: Method) -> bool:
    """Whether two methods are one, but for what rows start with."""
    if method is other:
        return True
    return method._replace(scorer=method.scorer._replace(init=other.scorer.init)) == other


def _new(
    caches: Sequence[Any], seat: Seat, held: Mapping[str, mx.array], found: kernels.Chosen
) -> Mapping[str, mx.array] | None:
    """What each layer's next token starts with, ``[L * B, H, 1]``, of ``held`` as far as no kernel wrote it.

    None: it takes the token's own row to tell.
    """
    missing = [name for name in held if name not in found.columns or found.position is None]
    if not missing:
        return {}
    (batch, heads, _, width), each = seat.keys.shape, seat.each
    inits, own = tuple([cache.plan.method.scorer.init for cache in caches]), (batch, heads, 1, width)
    if each is None:
        new = constants.together(inits, own, seat.end)
    else:
        new = constants.abreast(inits, own, each.tokens_seen)
    shape = (len(caches) * batch, heads, 1)
    if new is None or any(name not in new or new[name].shape != shape for name in missing):
        return None
    return {name: new[name] for name in missing}


def _shape(layer: Layer) -> Any:
    """What has to be the same of all layers."""
    rows, waiting, seen = layer.rows, layer.waiting, layer.seen
    asked = before = None
    if seen is not None:
        before = (seen.queries.shape, None if seen.origin is None else seen.origin.tobytes())
    if waiting is not None:
        first = waiting.queries[0]
        asked = (len(waiting.queries), waiting.end, first.shape, first.dtype, waiting.scale)
    columns = tuple((name, column.shape, column.dtype) for name, column in rows.columns.items())
    own = (rows.keys.shape, rows.keys.dtype, rows.position.shape, columns)
    return (*own, rows.bare, asked, before, layer.tokens_seen, layer.generated, layer.each)
