"""One layer between forwards, as pure functions: settle what is pending, admit new rows, see queries.

Every length is a Python int that depends on counts alone, so no step waits for the device.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from vqx import eviction, kernels
from vqx.options import Options
from vqx.ranking import top
from vqx.scorers import Arrivals, Held, Method
from vqx.state import lanes
from vqx.state.attention import HIDDEN, Block, Known
from vqx.state.packing import Packing
from vqx.state.positions import STEPS, Rotary, closed_up, closed_up_over
from vqx.state.processes import Processes
from vqx.state.replay import replay
from vqx.state.rows import (
    Gone,
    Rows,
    apart,
    append,
    append_bare,
    filled,
    going,
    move,
    no_rows,
    overwrite,
    pick,
)

WAITING = 32
"""Generated tokens whose queries are held, at least, before the scorer looks at them together."""


Places: TypeAlias = npt.NDArray[np.int32]


class Seen(NamedTuple):
    """The latest queries, as many as a score wants, with what attention did to them.

    Where attention reads other keys than the rows held, or adds numbers to its logits (latent attention
    does both), they cannot be repeated later: the logits are held then, one for each row, and go with it.
    """

    queries: mx.array  # [B, H, G, q, D], or their logits [B, H, G, q, n]
    scale: float
    sinks: mx.array | None = None  # [H * G]
    logits: bool = False
    origin: Places | None = None  # [B or 1, q], at compact positions: the place each was rotated for
    known: Known | None = None  # what attention gave to the rows, while they are the same

    @property
    def arrays(self) -> list[mx.array]:
        return [self.queries] if self.known is None else [self.queries, self.known.mass]

    def kept(self, slots: mx.array) -> "Seen":
        """With the rows at ``slots`` ``[B, H, m]`` only."""
        if not self.logits:
            return self._replace(known=None)
        return self._replace(queries=mx.take_along_axis(self.queries, slots[:, :, None, None], axis=4))

    def taken(self, at: Sequence[int]) -> "Seen":
        """Of the sequences at these places only."""
        origin = self.origin
        if origin is not None and len(origin) > 1:
            origin = origin[[*at]]
        taken = mx.take(self.queries, mx.array([*at]), axis=0)
        return self._replace(queries=taken, origin=origin, known=None)

    def first(self, n: int) -> "Seen":
        """With the first n rows only."""
        return self._replace(queries=self.queries[..., :n]) if self.logits else self._replace(known=None)

    def joined(self, count: int, slot: mx.array | None) -> "Seen":
        """With ``count`` rows more, behind the others or at ``slot``, which no earlier query saw."""
        if not self.logits:
            return self._replace(known=None)
        if slot is None:
            room = [(0, 0)] * 4 + [(0, count)]
            return self._replace(queries=mx.pad(self.queries, room, constant_values=HIDDEN))
        hidden = mx.array(HIDDEN, mx.float32)
        return self._replace(queries=mx.put_along_axis(self.queries, slot[:, :, None, None], hidden, axis=4))


class Each(NamedTuple):
    """What differs among the sequences of a joined layer (``vqx.state.joined``), a number for each."""

    rows: tuple[int, ...]
    """Rows that it fills, the first ones; what is behind them is padding, and read by nobody."""
    tokens_seen: tuple[int, ...]
    generated: tuple[int, ...]


class Waiting(NamedTuple):
    """Queries of the latest tokens, each generated alone, that the scorer has not seen."""

    queries: tuple[mx.array, ...]  # [B, H * G, 1, D] each
    end: int  # the position behind the last of them
    scale: float
    sinks: mx.array | None  # [H * G]
    known: Known | None = None

    def block(self, heads: int) -> mx.array:
        """All of them, ``[B, H, G, S, D]``."""
        queries = self.queries[0] if len(self.queries) == 1 else mx.concatenate([*self.queries], axis=2)
        batch, _, count, width = queries.shape
        return queries.reshape(batch, heads, -1, count, width)


class Ahead(NamedTuple):
    """What is decided for the next token before it comes."""

    layer: "Layer"  # as it is once the scorer saw what waits
    what: kernels.Chosen | kernels.Kept
    late: Sequence[mx.array] = ()
    """Where several rows go, those behind the first that may stay: keys and values, ``[B, H, m, D]``."""

    @property
    def carried(self) -> list[mx.array]:
        """The arrays that no logits need yet."""
        first: mx.array = self.what[0]
        fused = len(self.what.columns) == len(self.layer.rows.columns)  # all of one kernel
        return [first, *self.late] if fused else [first, *self.late, *self.layer.carried]


class Layer(NamedTuple):
    """Rows and what goes with them; replaced as a whole, so a failed forward leaves the old one."""

    rows: Rows
    tokens_seen: int = 0
    generated: int = 0  # single-token forwards since the last prompt
    last: int = 0  # tokens of the last forward
    evicted: bool = False
    seen: Seen | None = None
    key_sum: mx.array | None = None  # [B, H, 1, D] float32, of all keys so far (centred keys)
    notes: Mapping[str, mx.array] = {}  # what the scorer knows of all queries so far
    heads: int = 1  # heads whose rows stand in one lane (vqx.state.lanes)
    padding: int = 0  # rows of the lane that are nobody's, on average over the processes that share the heads
    waiting: Waiting | None = None
    ahead: Ahead | None = None
    written: mx.array | None = None  # the positions as a kernel wrote them last, and all columns with them
    gone: Gone | None = None  # with `undo`: the row that the latest one was written over
    each: Each | None = None  # the sequences of a batch, where they differ; the counts above are the greatest

    @property
    def end(self) -> Any:
        """The position of the next token; ``[B, 1, 1]`` where the sequences of a batch differ."""
        return self.tokens_seen if self.each is None else mx.array(self.each.tokens_seen)[:, None, None]

    @property
    def size(self) -> int:
        """Rows per head; where heads share a lane, their mean."""
        return (self.rows.length - self.padding) // self.heads

    @property
    def carried(self) -> list[mx.array]:
        """The arrays that no logits need yet."""
        asked = [] if self.seen is None else self.seen.arrays
        total = [] if self.key_sum is None else [self.key_sum]
        return [self.rows.position, *self.rows.columns.values(), *self.notes.values(), *asked, *total]


class Plan(NamedTuple):
    """What stays the same for a layer's whole life."""

    method: Method
    options: Options
    rotary: Rotary | None = None
    packing: Packing | None = None
    across: Processes | None = None  # those that share the layer's heads; None: they are all here

    @property
    def compact(self) -> bool:
        return self.options.positions == "compact"

    def takes_mass(self, layer: Layer) -> bool:
        """Whether all that the scorer asks of the token generated last is what attention gave to each row."""
        scorer = self.method.scorer
        if layer.heads > 1 or layer.each is not None:
            return False
        return scorer.decay is not None or (scorer.observe is None and scorer.window == 1 and self.due(layer))

    @property
    def full(self) -> int:
        """Rows from which on some go, while tokens are generated."""
        return self.method.budget + self.options.interval

    @property
    def least(self) -> "Plan":
        """The same with the budget that the layer has at least, where layers share their rows."""
        share = self.method.share
        return self if share is None else self._replace(method=self.method._replace(budget=share.least))

    def takes_weights(self, layer: Layer) -> bool:
        """Whether the scorer looks at all queries of a prompt as attention has them."""
        apart = layer.heads > 1 or layer.each is not None or self.replays(layer)
        return self.method.scorer.observe is not None and self.options.queries == "model" and not apart

    def replays(self, layer: Layer) -> bool:
        """Token cadence decides a forward of several tokens one by one, once all are there."""
        return self.options.cadence == "token" and layer.last > 1

    def due(self, layer: Layer) -> bool:
        """Rows must go before the next ones come."""
        excess = layer.size - self.method.budget
        if layer.last > 1:
            return excess > 0 and self.options.prompt == "chunks"
        return excess >= self.options.interval

    @property
    def defers(self) -> bool:
        """Generated tokens may wait until a score is asked for, and are then looked at together."""
        options, scorer = self.options, self.method.scorer
        seen = options.queries == "model" or not scorer.reads_queries
        return seen and not self.compact and not scorer.anew and self.method.floor is None

    @property
    def most(self) -> int:
        """Waiting queries that are looked at, the latest ones; 0: all."""
        scorer = self.method.scorer
        return scorer.window if scorer.observe is None and scorer.note is None else 0

    def spare(self, layer: Layer) -> int:
        """Tokens generated from now on that need nothing but room, as many as may wait."""
        if not self.defers or layer.heads > 1 or layer.last > 1 or (layer.seen and layer.seen.logits):
            return 0
        most = max(self.options.interval, WAITING)
        waiting = max(layer.rows.bare, len(layer.waiting.queries) if layer.waiting else 0)
        room = min(layer.rows.keys.shape[2], self.method.budget + self.options.interval) - layer.size
        return max(min(room, most - waiting), 0)

    def rows_next(self, layer: Layer) -> int:
        """Rows that remain once what is pending is settled."""
        return min(layer.size, self.method.budget) if self.due(layer) else layer.size


def admit(plan: Plan, layer: Layer | None, keys: mx.array, values: mx.array) -> Layer:
    """Settle what is pending, then hold S more rows: keys ``[B, H, S, D]``, rotated for where they stand."""
    length = keys.shape[2]
    if layer is not None and length == 1 and plan.spare(layer):
        return admit_bare(plan, layer, mx.depends([keys], layer.carried)[0], values)
    start = layer.tokens_seen if layer is not None else 0
    new = begun(plan, keys, values, start)
    bound = (plan.method.budget + plan.options.interval) * (1 if layer is None else layer.heads)
    if layer is None:
        layer = Layer(append(no_rows(new), new, bound))
    else:
        layer = caught_up(plan, layer)
        # what no logits need is evaluated with this forward: no graph grows over tokens
        new = new._replace(keys=mx.depends([new.keys], layer.carried)[0])
        layer, slot = settle(plan, layer, room=max(length, plan.options.interval))
        new = new if layer.heads == 1 else lanes.one_lane(new)
        gone = None
        if slot is not None and plan.options.undo:  # read before it is written over
            gone = going(layer.rows, slot)
            keys, values = mx.depends([new.keys, new.values], [gone.keys, gone.values])
            new = new._replace(keys=keys, values=values)
        rows = append(layer.rows, new, bound) if slot is None else overwrite(layer.rows, slot, new)
        seen = None if layer.seen is None else layer.seen.joined(length, slot)
        layer = layer._replace(rows=rows, seen=seen, gone=gone)
    return layer._replace(
        tokens_seen=start + length, last=length, generated=layer.generated + 1 if length == 1 else 0
    )


def admit_bare(plan: Plan, layer: Layer, keys: mx.array, values: mx.array) -> Layer:
    """Hold one more row, ``[B, H, 1, D]``, and leave all else for later: where ``Plan.spare`` says so."""
    if plan.packing is not None:
        keys, values = plan.packing.packed(keys, values)
    rows = append_bare(layer.rows, keys, values)
    return layer._replace(rows=rows, tokens_seen=layer.tokens_seen + 1, last=1, generated=layer.generated + 1)


def caught_up(plan: Plan, layer: Layer) -> Layer:
    """The layer with nothing left for later: bare rows get their columns, the scorer sees what waits."""
    layer, waiting = dressed(plan, layer)._replace(ahead=None), layer.waiting
    if waiting is None:
        return layer
    queries, later = waiting.block(layer.rows.keys.shape[1]), layer.tokens_seen - waiting.end
    layer = layer._replace(waiting=None)
    known = waiting.known if not later else None
    return watch(plan, layer, queries, scale=waiting.scale, sinks=waiting.sinks, later=later, known=known)


def dressed(plan: Plan, layer: Layer) -> Layer:
    """The layer with the positions and columns of its bare rows."""
    rows = layer.rows
    if not rows.bare:
        return layer
    n, start = rows.position.shape[2], layer.tokens_seen - rows.bare
    keys, values = (array[:, :, n:] for array in dense(plan, layer))
    late = columns_of(plan, keys, values, start)
    position = mx.concatenate([rows.position, _count(keys, start)], axis=2)
    columns = {k: mx.concatenate([c, late[k]], axis=2) for k, c in rows.columns.items()}
    return layer._replace(rows=Rows(rows.keys, rows.values, position, columns))


def wait(
    plan: Plan,
    layer: Layer,
    queries: mx.array,
    scale: float,
    sinks: mx.array | None,
    mass: mx.array | None = None,
) -> Layer:
    """Hold the query ``[B, H * G, 1, D]`` of the token generated last until the layer is caught up.

    ``mass`` ``[B, H, n]`` is what its attention gave to each row, the mean over its group.
    """
    waiting = layer.waiting
    held: tuple[mx.array, ...] = (queries,)
    known = None if mass is None else Known(mass)
    if waiting is not None and plan.most:
        held = (*waiting.queries, queries)[-plan.most :]
        known = known if len(held) == 1 else None
    elif waiting is not None:
        held = (*waiting.queries, queries)
        known = _added(waiting.known, mass, plan.method.scorer.decay)
    return layer._replace(waiting=Waiting(held, layer.tokens_seen, scale, sinks, known))


def _added(known: Known | None, mass: mx.array | None, decay: float | None) -> Known | None:
    """The mass of one query more, which sees rows that came since; None where a part of it is not known."""
    if known is None or mass is None or decay is None:
        return None
    before = mx.pad(known.mass, [(0, 0), (0, 0), (0, mass.shape[2] - known.mass.shape[2])])
    return Known((before if decay == 1.0 else before * decay) + mass, decay)


def begun(plan: Plan, keys: mx.array, values: mx.array, start: int) -> Rows:
    """New rows with what they start with."""
    held = keys, values
    if plan.packing is not None:  # a method sees rows as they are held
        held = plan.packing.packed(keys, values)
        keys, values = plan.packing.unpacked(*held)
    return Rows(*held, _count(keys, start), columns_of(plan, keys, values, start))


def columns_of(plan: Plan, keys: mx.array, values: mx.array, start: Any) -> dict[str, mx.array]:
    """What rows start with, ``[B, H, S]`` each; ``start`` as of ``vqx.Arrivals``."""
    columns = plan.method.scorer.init(Arrivals(keys, values, start))
    held = {name: _alike(column) for name, column in columns.items()}
    if plan.compact:
        held[STEPS] = mx.zeros(keys.shape[:3], mx.int32)
    return held


def _alike(column: Any) -> mx.array:
    """A column; of one value for all rows nothing is copied."""
    if isinstance(column, np.ndarray) and column.size > 1 and not any(column.strides):
        return mx.full(column.shape, float(column.flat[0]), mx.float32)
    return mx.array(column)


def settle(plan: Plan, layer: Layer, room: int) -> tuple[Layer, mx.array | None]:
    """Evict what is due; also the slot to overwrite, where one row goes and one comes (``room`` 1).

    The layer must be caught up.
    """
    method, rows = plan.method, layer.rows
    if plan.replays(layer):
        slots, columns = _replayed(plan, layer)
        if plan.compact:
            gone = mx.put_along_axis(mx.ones(rows.position.shape, mx.bool_), slots, mx.array(False), axis=2)
            rows = closed_up(rows, gone)
        kept = pick(rows, slots, room)
        kept = kept._replace(columns={**kept.columns, **columns})
        return layer._replace(rows=kept, evicted=plan.due(layer) or layer.evicted), None
    if not plan.due(layer):
        return layer, None
    held = held_of(plan, layer)
    dropped = _dropped(plan, layer, held, room)
    if dropped is not None:
        return dropped, None
    protected = eviction.safe(method, held.position, held.newest)
    layer, score = _together(plan, layer, held, eviction.guarded(scored(method, held), protected))
    if plan.across is not None and method.floor is not None:
        return _over_processes(plan, plan.across, layer, score, room)
    rows, heads = layer.rows, layer.heads
    age = rows.position if heads == 1 else rows.position * heads + rows.columns["head"]
    layer = layer._replace(evicted=True)
    if layer.size == method.budget + 1 and room == 1:
        slot = eviction.victims(score, age, heads)
        if method.merge is not None:
            rows = _merged(plan, held, rows, mx.arange(layer.size) == slot)
        return layer._replace(rows=closed_up_over(rows, slot) if plan.compact else rows), slot
    keep = method.budget * heads
    few = in_place(plan, layer, room)
    stay = kernels.highest(score, age, keep)
    stay = top(score, age, keep) if stay is None else stay
    rows = _merged(plan, held, rows, ~stay)
    rows = closed_up(rows, ~stay) if plan.compact else rows
    if few:
        return layer._replace(rows=move(rows, eviction.freed(stay, keep))), None
    slots = eviction.survivors(stay, age, keep)
    seen = None if layer.seen is None else layer.seen.kept(slots)
    return layer._replace(rows=pick(rows, slots, room * heads), seen=seen), None


def _dropped(plan: Plan, layer: Layer, held: Held, room: int) -> Layer | None:
    """The layer after a cut by kernels that guard, choose and carry along; None: none serves it."""
    method, rows = plan.method, layer.rows
    shared = layer.heads > 1 or method.floor is not None or layer.each is not None
    if shared or method.merge is not None or plan.compact or kernels.target() == "reference":
        return None
    if in_place(plan, layer, room) or (layer.size == method.budget + 1 and room == 1):
        return None
    known = kernels.kept(
        method,
        scored(method, held),
        rows.position,
        rows.columns,
        method.budget,
        end=layer.end,
        in_place=False,
    )
    if known is None:
        return None
    seen = None if layer.seen is None else layer.seen.kept(known.slots)
    return layer._replace(rows=pick(rows, known.slots, room, known), seen=seen, evicted=True)


def in_place(plan: Plan, layer: Layer, room: int) -> bool:
    """Whether few rows go, from a buffer that is as large as it has to be: they are written over."""
    excess = layer.size - plan.method.budget
    fits = layer.last == 1 and excess <= plan.options.interval and room <= plan.options.interval
    return fits and plan.defers and layer.heads == 1 and not (layer.seen and layer.seen.logits)


class Ranked(NamedTuple):
    """The rows of a layer as its next cut ranks them."""

    position: mx.array  # [B, H, n]; lanes.ELSEWHERE where a row is another head's
    score: mx.array  # [B, H, n] float32: inf where no score can evict, NaN where a replay decides later
    stays: mx.array  # [B, H, n] booleans: what that cut leaves


def ranked(plan: Plan, layer: Layer) -> Ranked:
    """What a method thinks of the rows held, for pictures; the layer stays as it is."""
    held = held_of(plan, layer)
    score = mx.full(held.position.shape, mx.nan)
    if not plan.replays(layer):
        safe = eviction.safe(plan.method, held.position, held.newest)
        score = eviction.guarded(scored(plan.method, held), safe)
    # room for two rows: with room for one, settling names a slot instead of dropping its row
    left = _position(settle(plan, layer, room=2)[0])
    stays = mx.any(held.position[..., None] == left[..., None, :], axis=-1)
    return Ranked(held.position, score, stays & (held.position != lanes.ELSEWHERE))


def _together(plan: Plan, layer: Layer, held: Held, score: mx.array) -> tuple[Layer, mx.array]:
    """Where heads share a budget, one ranking of all their rows, each head's best up to the floor on top."""
    (batch, heads, _), method = score.shape, plan.method
    if method.floor is None or heads == 1:
        return layer, score
    theirs = held.position == lanes.ELSEWHERE
    best = top(mx.where(theirs, -mx.inf, score), held.position, int(method.floor * method.budget))
    score = mx.where(best, mx.maximum(score, eviction.LARGEST), score)
    if layer.heads == heads:
        return layer, lanes.own(score, layer.rows, heads)
    return layer._replace(rows=lanes.one_lane(layer.rows), heads=heads), score.reshape(batch, 1, -1)


def _over_processes(
    plan: Plan, of: Processes, layer: Layer, score: mx.array, room: int
) -> tuple[Layer, mx.array | None]:
    """Settle one lane where processes share its heads: the best rows of all stay, wherever they are.

    How many of them are here depends on scores, which no shape may: a lane has room for as many as the
    floors of other heads leave. Rows beyond those that stay are padding, of head -1, which goes first.
    """
    rows, heads, (_, budget, *_) = layer.rows, layer.heads, plan.method
    n, every, head = rows.length, heads * of.size, rows.columns["head"]
    first = of.size * n  # ages of padding stand below, so that all are distinct
    age = rows.position * every + (first + of.rank * heads) + head
    age = mx.where(head < 0, mx.arange(n, dtype=mx.int32) + of.rank * n, age)
    score = mx.where(head < 0, -mx.inf, score)
    stay = of.own(top(of.every(score), of.every(age), budget * every))
    rows = rows._replace(columns={**rows.columns, "head": mx.where(stay, head, -1)})
    most = budget * every - (every - heads) * int((plan.method.floor or 0.0) * budget)
    if layer.size == budget + 1 and room == 1 and n >= most + heads:
        slot = eviction.victims(stay.astype(mx.float32), age, heads)
        return layer._replace(rows=rows, evicted=True), slot
    held = min(most, n)
    rows = pick(rows, eviction.survivors(stay, age, held), room * heads)
    return layer._replace(rows=rows, evicted=True, padding=held - heads * budget), None


def held_of(plan: Plan, layer: Layer) -> Held:
    """What a score looks at."""
    together = plan.method.floor is not None and layer.heads * layer.rows.position.shape[1] > 1

    def one_set(mean: mx.array) -> mx.array:
        raise lanes.CannotShare(
            "heads that share a budget keep rows of their own, and this method keeps one set of rows for all"
            " heads of a layer; share the budget of a method whose heads rank alone (heads='each')"
        )

    def read() -> tuple[mx.array, mx.array]:
        if together:
            raise lanes.CannotShare(
                "heads that share a budget hold their rows together, and this method reads keys or values"
                " head by head; share the budget of a method that ranks by attention"
            )
        return placed(plan, layer), dense(plan, layer)[1]

    return Held(
        stats=_stats(layer),
        position=_position(layer),
        newest=layer.end - 1,
        read=read,
        last=latest(plan, layer),
        notes=layer.notes,
        rotary=plan.rotary,
        place=_next_place(plan, layer),
        across=one_set if together else None if plan.across is None else plan.across.mean,
    )


def scored(method: Method, held: Held) -> mx.array:
    """The method's score of every row, ``[B, H, n]``."""
    return mx.broadcast_to(mx.array(method.scorer.score(held)), held.position.shape)


def _position(layer: Layer) -> mx.array:
    """Positions as each head sees them, ``[B, H, n]``."""
    return layer.rows.position if layer.heads == 1 else lanes.positions(layer.rows, layer.heads)


def _stats(layer: Layer) -> Mapping[str, mx.array]:
    """Columns as each head sees them, ``[B, H, n]``."""
    columns = layer.rows.columns
    return columns if layer.heads == 1 else lanes.seen_by_heads(columns, layer.heads)


def _merged(plan: Plan, held: Held, rows: Rows, gone: mx.array) -> Rows:
    """Let the method add to the values of rows that stay what the others take with them."""
    if plan.method.merge is None:
        return rows
    values = plan.method.merge(held, gone).astype(rows.values.dtype)
    return rows._replace(values=mx.slice_update(rows.values, values, mx.array([0]), axes=[2]))


def watch(
    plan: Plan,
    layer: Layer,
    queries: mx.array,
    *,
    scale: float,
    mask: Any = "causal",
    sinks: mx.array | None = None,
    keys: mx.array | None = None,
    logits: bool = False,
    later: int = 0,
    known: Known | None = None,
    given: mx.array | None = None,
) -> Layer:
    """Let the scorer see the queries ``[B, H, G, S, D]`` of the rows admitted last.

    ``keys`` are what attention reads, ``logits`` says that they cannot be repeated from the rows alone;
    ``later`` tokens were admitted since; ``known`` is what attention itself gave to each row, and ``given``
    ``[B, H, G, S, n]`` are its weights.
    """
    scorer = plan.method.scorer
    block = block_of(plan, layer, queries, scale=scale, mask=mask, sinks=sinks, keys=keys, later=later)
    block = block._replace(known=known, given=given)
    layer = remember(plan, layer, block, logits or (layer.seen is not None and layer.seen.logits))
    if scorer.note is not None:
        layer = layer._replace(notes=scorer.note(layer.notes, *_unturned(plan, layer, queries, scale, later)))
    if scorer.observe is None or plan.replays(layer):
        return layer
    observed = scorer.observe(_stats(layer), block)
    if layer.heads > 1:
        observed = {name: lanes.own(column, layer.rows, layer.heads) for name, column in observed.items()}
    columns = {**layer.rows.columns, **observed}
    return layer._replace(rows=layer.rows._replace(columns=columns))


def block_of(
    plan: Plan,
    layer: Layer,
    queries: mx.array,
    *,
    scale: float,
    mask: Any = "causal",
    sinks: mx.array | None = None,
    keys: mx.array | None = None,
    later: int = 0,
) -> Block:
    """The attention of queries, as of ``watch``."""
    return Block(
        queries=queries,
        keys=placed(plan, layer) if keys is None else keys,
        position=_position(layer),
        start=layer.end - later - queries.shape[3],
        scale=scale,
        mask=mask,
        sinks=sinks,
        generated=_generated_before(layer, later + queries.shape[3]),
        decoded=layer.last == 1,
        later=later,
        ordered=layer.each is None,
        elsewhere=layer.heads > 1,
    )


def stand_ins(plan: Plan, layer: Layer, keys: mx.array) -> tuple[Layer, mx.array]:
    """Keys ``[B, H, S, D]`` in the place of queries, as such or less the mean of all keys so far."""
    if plan.options.queries == "keys":
        return layer, keys
    wide = keys.astype(mx.float32)
    total = mx.cumsum(wide, axis=2)
    if layer.key_sum is not None:
        total = total + layer.key_sum
    length = keys.shape[2]
    count = (layer.end - length) + mx.arange(1, length + 1)  # [S], or [B, 1, S]
    return layer._replace(key_sum=total[..., -1:, :]), wide - total / count[..., None]


def dense(plan: Plan, layer: Layer) -> tuple[mx.array, mx.array]:
    """Keys and values of the rows held, as received or widened: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
    held = filled(layer.rows)
    return held if plan.packing is None else plan.packing.unpacked(*held)


def widths(plan: Plan, rows: Rows) -> tuple[int, int]:
    """Channels of a key and of a value, as the model makes them."""
    if plan.packing is not None:
        return plan.packing.width, plan.packing.value_width
    return int(rows.keys.shape[3]), int(rows.values.shape[3])


def attended(plan: Plan, layer: Layer) -> tuple[mx.array, mx.array]:
    """Keys and values of the rows held as attention reads them."""
    keys, values = dense(plan, layer)
    return (placed(plan, layer) if plan.compact else keys), values


def placed(plan: Plan, layer: Layer) -> mx.array:
    """Keys as attention reads them ``[B, H, n, D]``; compact positions turn each once, to its place."""
    keys, _ = dense(plan, layer)
    if plan.rotary is None or not plan.compact or not layer.evicted:
        return keys
    return plan.rotary.placed(keys, layer.rows.columns[STEPS], layer.tokens_seen)


def _next_place(plan: Plan, layer: Layer) -> Any:
    """For which position the next query is rotated; ``[B, 1, 1]`` where the sequences of a batch differ."""
    if not plan.compact:
        return layer.end
    return layer.size if layer.each is None else mx.array(layer.each.rows)[:, None, None]


def _count(keys: mx.array, start: int) -> mx.array:
    """Positions of new rows from ``start`` on, ``[B, H, S]``."""
    batch, heads, length, _ = keys.shape
    if length == 1:
        return mx.full((batch, heads, 1), start, mx.int32)
    positions = mx.arange(start, start + length, dtype=mx.int32)
    return mx.broadcast_to(positions, (batch, heads, length))


def _generated_before(layer: Layer, count: int) -> int | tuple[int, ...]:
    """Tokens generated before the last ``count``."""
    if layer.each is None:
        return max(layer.generated - count, 0)
    return tuple(max(generated - count, 0) for generated in layer.each.generated)


def remember(plan: Plan, layer: Layer, block: Block, logits: bool) -> Layer:
    """Hold the last ``window`` queries, or for a replay also those of the whole block."""
    window, length = plan.method.scorer.window, block.length
    wanted = window
    if plan.replays(layer) and plan.method.scorer.reads_queries:
        wanted = max(window - 1, 0) + length
    if not wanted:
        return layer
    queries, origin = block.shown(wanted) if logits else block.queries, _origin(plan, layer, length)
    if layer.seen is not None and wanted > length:
        if logits and not layer.seen.logits:
            raise ValueError(
                "the model adds numbers to its logits in some forwards only, which a score over earlier"
                " queries cannot follow; use queries='centred-keys'"
            )
        queries = mx.concatenate([layer.seen.queries, queries], axis=3)
        origin = _behind(layer.seen.origin, origin)
    if queries.shape[3] > wanted:  # copied, since a view would keep all of them
        queries = apart(queries.swapaxes(2, 3), queries.shape[3] - wanted, queries.shape[3]).swapaxes(2, 3)
    origin = None if origin is None else origin[:, -wanted:]
    known = block.known if wanted == 1 else None
    return layer._replace(seen=Seen(queries, block.scale, block.sinks, logits, origin, known))


def _origin(plan: Plan, layer: Layer, length: int) -> Places | None:
    """The places that the queries of the last ``length`` tokens were rotated for."""
    if not plan.compact:
        return None
    rows = np.array([layer.size] if layer.each is None else layer.each.rows, np.int32)
    return (rows[:, None] + np.arange(-length, 0)).astype(np.int32)


def _behind(one: Places | None, other: Places | None) -> Places | None:
    if one is None or other is None:
        return None
    batch = max(len(one), len(other))
    both = [np.broadcast_to(each, (batch, each.shape[1])) for each in (one, other)]
    found: Places = np.concatenate(both, axis=1)
    return found


def latest(plan: Plan, layer: Layer) -> Block | None:
    """The attention of the last ``window`` queries over the rows now held."""
    seen, window = layer.seen, plan.method.scorer.window
    if not window or seen is None:
        return None
    queries = seen.queries[..., -window:, :]
    count = queries.shape[3]
    if plan.rotary is not None and seen.origin is not None and not seen.logits:
        place = _next_place(plan, layer) + mx.arange(-count, 0) - mx.array(seen.origin[:, None, -count:])
        batch, heads, group, _, width = queries.shape
        flat = queries.reshape(batch, heads * group, count, width)
        turned = plan.rotary.turn(flat, mx.broadcast_to(place, flat.shape[:3]))
        queries = turned.reshape(queries.shape)
    return Block(
        queries=queries,
        keys=None if seen.logits else placed(plan, layer),
        position=_position(layer),
        start=layer.end - count,
        scale=seen.scale,
        mask=None if seen.logits else "causal",  # what a query did not see is hidden in its logits
        sinks=seen.sinks,
        elsewhere=layer.heads > 1,
        known=seen.known,
    )


def _unturned(plan: Plan, layer: Layer, queries: mx.array, scale: float, later: int) -> tuple[mx.array, Any]:
    """The queries of the forward under way before their rotation, scaled, and the position of the first."""
    length, rotary = queries.shape[3], plan.rotary
    if rotary is None:
        raise ValueError("a scorer that takes notes of queries needs the layer's rotary embedding")
    start = _next_place(plan, layer) - later - length
    batch, heads, group, _, width = queries.shape
    flat = (queries.astype(mx.float32) * scale).reshape(batch, heads * group, length, width)
    back = mx.broadcast_to(-(start + mx.arange(length, dtype=mx.int32)), flat.shape[:3])
    return rotary.turn(flat, back).reshape(queries.shape), layer.end - later - length


def _replayed(plan: Plan, layer: Layer) -> tuple[mx.array, Mapping[str, mx.array]]:
    own = {name: column for name, column in layer.rows.columns.items() if name != STEPS}
    seen, rows = layer.seen, layer.rows._replace(keys=placed(plan, layer), columns=own)
    if plan.packing is not None:
        rows = rows._replace(values=dense(plan, layer)[1])
    return replay(
        plan.method,
        rows,
        None if seen is None else seen.queries,
        new=layer.last,
        start=layer.tokens_seen - layer.last,
        scale=1.0 if seen is None else seen.scale,
        sinks=None if seen is None else seen.sinks,
        across=None if plan.across is None else plan.across.mean,
    )
