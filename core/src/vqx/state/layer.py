"""One layer between forwards: its rows and what goes with them, what stays the same for its life, and how
it reads.

Every length is a Python int that depends on counts alone, so no step waits for the device.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from vqx import kernels
from vqx.options import Options
from vqx.scorers import Method
from vqx.state import lanes
from vqx.state.attention import HIDDEN, Known
from vqx.state.packing import Packing
from vqx.state.positions import STEPS, Rotary
from vqx.state.processes import Processes
from vqx.state.rows import Gone, Rows, filled

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
        which, known = mx.array([*at]), self.known
        known = None if known is None else Known(mx.take(known.mass, which, axis=0), known.decay)
        return self._replace(queries=mx.take(self.queries, which, axis=0), origin=origin, known=known)

    def first(self, n: int) -> "Seen":
        """With the first n rows only."""
        known = None if self.known is None else Known(self.known.mass[..., :n], self.known.decay)
        return self._replace(queries=self.queries[..., :n] if self.logits else self.queries, known=known)

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

    @property
    def even(self) -> bool:
        """Whether all fill as many rows, so that there is no padding."""
        return min(self.rows) == max(self.rows)

    def longer(self, count: int = 1, rows: int = 1) -> "Each":
        """With so many tokens more of every sequence, and for each of them so many rows."""
        return Each(*(tuple([n + more for n in each]) for each, more in zip(
            self, (count * rows, count, count), strict=True)))  # fmt: skip


@functools.lru_cache(maxsize=8)
def stacked(numbers: tuple[int, ...]) -> mx.array:
    """A number of each sequence, ``[B, 1, 1]`` int32: made once for all layers that ask for it."""
    return mx.array(np.array(numbers, np.int32)[:, None, None])


@functools.lru_cache(maxsize=8)
def later(numbers: tuple[int, ...], count: int) -> mx.array:
    """A number of each sequence after so many tokens more, ``[B]`` int32; made once for all layers."""
    return mx.array(np.array(numbers, np.int32) + np.int32(count))


@functools.lru_cache(maxsize=8)
def slots_later(rows: tuple[int, ...], count: int, heads: int) -> mx.array:
    """The slot of each sequence's next row after so many tokens more, ``[B, H, 1, 1]``; made once."""
    slot = np.array(rows, np.int32)[:, None, None, None] + np.int32(count)
    return mx.array(np.repeat(slot, heads, axis=1))


class Waiting(NamedTuple):
    """Queries of the latest tokens, each generated alone, that the scorer has not seen."""

    queries: tuple[mx.array, ...]  # [B, H * G, 1, D] each
    end: int  # the position behind the last of them
    scale: float
    sinks: mx.array | None  # [H * G]
    known: Known | None = None

    @property
    def joined(self) -> mx.array:
        """All of them, ``[B, H * G, S, D]``."""
        return self.queries[0] if len(self.queries) == 1 else mx.concatenate([*self.queries], axis=2)

    def block(self, heads: int) -> mx.array:
        """All of them, ``[B, H, G, S, D]``."""
        queries = self.joined
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
        fused = len(self.what.columns) == len(self.layer.rows.columns)  # all of one kernel, but for steps
        steps = [self.what.columns[STEPS]] if STEPS in self.what.columns else []
        made = [first, *self.late, *steps]
        if isinstance(self.what, kernels.Kept):  # MLX operations make each of these by itself
            made += [self.what.position, *self.what.columns.values()]
        return made if fused else [*made, *self.layer.carried]


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
    score: mx.array | None = None  # [B, H or 1, n] float32, instead of the one query that it was made from
    ahead: Ahead | None = None
    written: mx.array | None = None  # the positions as a kernel wrote them last, and all columns with them
    gone: Gone | None = None  # with `undo`: the row that the latest one was written over
    each: Each | None = None  # the sequences of a batch, where they differ; the counts above are the greatest

    @property
    def end(self) -> Any:
        """The position of the next token; ``[B, 1, 1]`` where the sequences of a batch differ."""
        return self.tokens_seen if self.each is None else stacked(self.each.tokens_seen)

    @property
    def size(self) -> int:
        """Rows per head; where heads share a lane, their mean."""
        return (self.rows.length - self.padding) // self.heads

    @property
    def carried(self) -> list[mx.array]:
        """The arrays that no logits need yet."""
        asked = [] if self.seen is None else self.seen.arrays
        asked = asked if self.score is None else [*asked, self.score]
        total = [] if self.key_sum is None else [self.key_sum]
        return [self.rows.position, *self.rows.columns.values(), *self.notes.values(), *asked, *total]

    @property
    def untied(self) -> list[mx.array]:
        """Those of them that the latest token changed."""
        waiting = self.waiting
        known = [] if waiting is None or waiting.known is None else [waiting.known.mass]
        return known if self.rows.bare else [*self.carried, *known]


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

    def takes_mass(self, layer: Layer, due: bool) -> bool:
        """Whether all that the scorer asks of the token generated last is what attention gave to each row.

        ``due`` says that rows go before the next one comes.
        """
        scorer = self.method.scorer
        asks = scorer.decay is not None or (scorer.observe is None and scorer.window == 1 and due)
        return asks and layer.heads == 1

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
        return seen and not scorer.anew and self.method.floor is None

    @property
    def defers_apart(self) -> bool:
        """The same where sequences differ: only what asks for no number of each token and sequence."""
        scorer = self.method.scorer
        sums = scorer.decay is not None or (scorer.observe is None and scorer.note is None)
        return self.defers and not self.compact and (sums or not scorer.reads_queries)

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


def position_of(layer: Layer) -> mx.array:
    """Positions as each head sees them, ``[B, H, n]``."""
    return layer.rows.position if layer.heads == 1 else lanes.positions(layer.rows, layer.heads)


def stats_of(layer: Layer) -> Mapping[str, mx.array]:
    """Columns as each head sees them, ``[B, H, n]``."""
    columns = layer.rows.columns
    return columns if layer.heads == 1 else lanes.seen_by_heads(columns, layer.heads)


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
    steps, bare = layer.rows.columns[STEPS], layer.rows.bare
    steps = mx.pad(steps, [(0, 0), (0, 0), (0, bare)]) if bare else steps  # that came last moved nowhere yet
    return plan.rotary.placed(keys, steps, layer.tokens_seen)


def next_place(plan: Plan, layer: Layer) -> Any:
    """For which position the next query is rotated; ``[B, 1, 1]`` where the sequences of a batch differ."""
    if not plan.compact:
        return layer.end
    return layer.size if layer.each is None else stacked(layer.each.rows)
