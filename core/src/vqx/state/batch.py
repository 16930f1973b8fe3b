"""The cache of one layer for sequences that join and leave: what mlx-lm's batches ask of a cache.

A prompt is read by each kind of sequence as it would be read alone: those with the same history, and as many
new tokens, are one layer (a part), and only attention sees all of them side by side. The first token after
it joins the parts (``vqx.state.joined``): decoding treats the batch as a whole. While all sequences have
one history, the cache of one sequence does all.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from vqx.scorers import Method
from vqx.state import decoding, joined, masks
from vqx.state.allotment import Allotment, Change, changing
from vqx.state.council import Council
from vqx.state.exchange import closed
from vqx.state.layer import Ahead, Layer, Plan, attended, later
from vqx.state.members import Members, Own, check_alike, unfit
from vqx.state.parts import (
    Part,
    Shown,
    at_rest,
    in_lanes,
    of_each,
    of_layers,
    read,
    rows_left,
    side_by_side,
    split,
    stood_in,
    together,
    watched,
)
from vqx.state.rows import without_buffers
from vqx.state.run import Run
from vqx.state.saved import Recipe
from vqx.state.seats import Decision, Seat, seated
from vqx.state.settling import settle
from vqx.state.shown import check, unusable
from vqx.state.turn import Turn


class EvictingBatch:
    """Rows of one layer for each of several sequences, at most ``budget`` of each between forwards.

    Args:
        caches: one for each sequence, made alike; they are left as they are.

    Raises:
        ValueError: caches that were made in different ways, or that cannot be read in one batch.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        first = caches[0]
        for cache in caches:
            if why := unfit(cache.plan):
                raise ValueError(f"no batches: {why}")
            check_alike(first, cache)
            cache.check_pending()
        self.plan: Plan = first.plan
        self.allotment: Allotment | None = next((c.allotment for c in caches if c.allotment), None)
        alone = [Members((cache.plan,), cache.change, (0,)) for cache in caches]
        self.members: Members = functools.reduce(Members.joined, alone)
        self.number: int = first.number
        self.recipe: Recipe | None = first.recipe
        self.single: Callable[..., Any] = first.another
        self.updated: Callable[[Any], None] | None = first.updated
        watching = first.plan.method.scorer.reads_queries and first.plan.options.queries == "model"
        self._unshown = "computes attention by itself" if watching else ""
        self._unseen = ""
        empty = tuple(i for i, cache in enumerate(caches) if cache.layer is None)
        held = [Part((i,), _by_query(c.plan, c.layer)) for i, c in enumerate(caches) if c.layer is not None]
        self._still: list[Part] = [*([Part(empty)] if empty else []), *held]  # before the run under way
        self._run: Run | Seat | None = None
        self._shapes: tuple[Any, Any] = ((), ())  # of one token's keys and values
        self._one: Any = None  # the cache that does all, while the sequences have one history
        self._length = 0  # tokens of the last forward, padding included
        self._nan: mx.array | None = None
        self.turn: Turn | None = None if first.turn is None else first.turn.made_of(self.number)
        if self.turn is not None:
            self.turn.join(self)

    def __len__(self) -> int:
        return len(self.members.plans)

    def __deepcopy__(self, memo: dict[int, Any]) -> "EvictingBatch":
        turn = copy.deepcopy(self.turn, memo)
        # arrays and layers are values, which no one changes: only the list of them is
        parts, other = [*self.parts], copy.copy(self)
        other._parts, other.turn = parts, turn
        if other.turn is not None:
            other.turn.join(other)
        return other

    def now(self) -> tuple[dict[str, Any], Any, Any]:
        """As of ``vqx.EvictingCache``."""
        one, run = self._one, self._run
        return {**vars(self)}, None if one is None else one.now(), None if run is None else run.now()

    def within(self, run: Run | Seat) -> tuple[dict[str, Any], Any, Any]:
        """As of ``vqx.EvictingCache``."""
        return {"_still": self._still, "_run": run, "_unseen": ""}, None, run.now()

    def go_back(self, before: tuple[dict[str, Any], Any, Any]) -> None:
        """As of ``vqx.EvictingCache``."""
        attributes, one, run = before
        vars(self).update(attributes)
        if self._one is not None:
            self._one.go_back(one)
        if self._run is not None:
            self._run.go_back(run)

    @property
    def _parts(self) -> list[Part]:
        """Its sequences by history, as they are; of a run all are one part."""
        run = self._run
        if run is not None:
            (part,) = self._still
            layer = None if part.layer is None else run.ended(part.layer)
            self._unseen, self._still, self._run = self.unseen, [part._replace(layer=layer)], None
        return self._still

    @_parts.setter
    def _parts(self, parts: list[Part]) -> None:
        self._still, self._run = parts, None

    @property
    def unseen(self) -> str:
        """As of ``vqx.EvictingCache``."""
        run = self._run
        return self._unseen if run is None or run.read is None else self._unshown

    @unseen.setter
    def unseen(self, why: str) -> None:
        self._unseen = why

    @property
    def parts(self) -> list[Part]:
        """Its sequences by history, with nothing left for later."""
        self._parts = at_rest(self.members.plans, self._as_they_are)
        return self._parts

    @property
    def _as_they_are(self) -> list[Part]:
        """Its sequences by history: what waits in their layers waits on."""
        one = self._one
        if one is not None:
            self.unseen, self._nan, self._one = one.unseen, one._nan, None
            self._parts = [Part((*range(len(self)),), one.layer, self._length)]
        return self._parts

    @property
    def tokens_seen(self) -> tuple[int, ...]:
        """Of each sequence."""
        one, run, parts = self._one, self._run, self._still  # another thread may ask: nothing is changed here
        if one is not None:
            return (one.tokens_seen,) * len(self)
        if run is not None and run.each is not None:
            return run.each.tokens_seen
        return of_layers(parts, lambda layer: joined.each_of(layer).tokens_seen)

    @property
    def tokens_kept(self) -> tuple[int, ...]:
        """Of each sequence, the rows that remain for the next forward."""
        one, run, parts = self._one, self._run, self._still
        if one is not None:
            return (one.tokens_kept,) * len(self)
        if run is not None and run.each is not None:
            return decoding.left(self.members.plans, run.each.rows)
        return rows_left(parts, self.members.plans)

    @property
    def offset(self) -> int | mx.array:
        """The position at which the model rotates the next query and key: ``[B]`` where sequences differ."""
        run = self._run
        if run is not None:
            at: int | mx.array = run.offset
            return at
        layer, plain = self._still[0].layer, self.allotment is None and not self.plan.compact
        if plain and layer is not None and layer.each is not None and self._together:
            return later(layer.each.tokens_seen, 0)  # nothing is skipped where all sequences decode
        self._decide()
        place = self.tokens_kept if self.plan.compact else self.tokens_seen
        own = tuple(before - skip for before, skip in zip(place, self.members.skip, strict=True))
        return own[0] if len(set(own)) == 1 else later(own, 0)

    def prepare(
        self,
        *,
        left_padding: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        right_padding: Sequence[int] | None = None,
    ) -> None:
        """Say which of the tokens to come are padding; ``finalize`` ends it.

        Args:
            left_padding: for each sequence, tokens to skip before its first one: empty caches only.
            lengths: for each sequence, its own tokens until the padding behind them.

        Raises:
            ValueError: padding between tokens.
        """
        self._undo()
        if left_padding is not None and max(left_padding) > 0:
            if not self.empty():
                raise ValueError("left padding can be skipped before a sequence's first token only")
            before = zip(self.members.skip, left_padding, strict=True)
            self.members = self.members._replace(skip=tuple(a + int(b) for a, b in before))
        if lengths is not None and right_padding is not None and max(right_padding) > 0:
            self.members = self.members._replace(left=tuple(int(length) for length in lengths))

    def finalize(self) -> None:
        """The prompts were read; what was padding was never held."""
        self._undo()
        self.members = self.members._replace(left=None)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Settle what is pending, add each sequence's tokens, and return what attention reads.

        Args:
            keys: ``[B, H, S, D]``, rotated by the model from each sequence's ``offset`` on.
            values: ``[B, H, S, Dv]``.

        Raises:
            ValueError: as of ``vqx.EvictingCache``.
        """
        run, turn = self._run, self.turn
        if run is not None and self.members.left is None and run.takes(keys, values):
            if turn is not None:
                turn.read(self, self.within(run))
            return self._goes_on(run, keys, values)
        self._decide()
        if turn is not None:
            turn.read(self, self.now())
        begun = self._begun(keys, values)
        if begun is not None:
            return self._goes_on(begun, keys, values)
        keys, values = self._update(keys, values)
        if turn is not None:
            turn.done()
        return (keys, values) if self._unshown else (self._told(keys), values)

    def _begun(self, keys: mx.array, values: mx.array) -> Run | None:
        """The run that begins with a token of every sequence, where it needs nothing but room."""
        alike = self._nan is None and not self.unseen and (keys.shape, values.shape) == self._shapes
        (part, *others), members = self._parts, self.members
        layer = part.layer
        if not alike or others or layer is None or layer.each is None or layer.last != 1 or part.new != 1:
            return None
        if members.left is not None or self._one is not None or members.undecided:
            return None
        if layer.ahead is not None:
            layer = closed(members.plans[0], layer)
        left = 0 if layer is None else decoding.spare(members.plans, layer)
        if layer is None or not left:
            return None
        self._run = Run(members.plans[0], layer, left, self._shapes, bool(self._unshown))
        self._still = [part._replace(layer=layer._replace(rows=without_buffers(layer.rows)))]
        return self._run

    def _goes_on(self, run: Run | Seat, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As ``update_and_fetch`` for a token of a run."""
        keys, values = run.longer(keys, values)
        if self.updated is not None:
            self.updated(self)
        if self.turn is not None:
            self.turn.done()
        return (keys, values) if run.left or self._unshown else (self._told(keys), values)

    def goes_on(
        self, queries: mx.array, keys: mx.array, scale: float, sinks: mx.array | None, mask: Any = None
    ) -> bool:
        """As of ``vqx.EvictingCache``, under the batch's own mask."""
        run = self._run
        if run is None or mask is not run.mask() or not run.asked(queries, keys, scale, sinks):
            return False
        if run.left or not self._unshown or self.turn is None or (run.evicts and not run.last):
            return True
        self._at_end(run, keys)
        return self._run is run and not run.last  # what was decided is to be tied to what attention gives

    @property
    def as_it_is(self) -> Layer | None:
        """The layer of all sequences while they decode: as of ``vqx.EvictingCache``."""
        return self._as_they_are[0].layer if self._together else None

    @property
    def seat(self) -> Seat | None:
        """As of ``vqx.EvictingCache``."""
        return self._run if isinstance(self._run, Seat) else None

    def sit(self, council: Council, place: int, last: bool, held: Decision) -> Seat:
        """As of ``vqx.EvictingCache``."""
        (part,) = self._parts
        layer = self._any()
        seat = Seat(council, place, last, self.plan, layer, held, self._shapes, bool(self._unshown))
        self._still, self._run = [part._replace(layer=seated(layer))], seat
        return seat

    def foresee(self, ahead: Ahead) -> None:
        """As of ``vqx.EvictingCache``."""
        self._parts = [part._replace(layer=self._any()._replace(ahead=ahead)) for part in self._parts]

    def _told(self, keys: mx.array) -> mx.array:
        """``keys``, with what a council decided now that a token was read without a query."""
        turn, run = self.turn, self._run
        if turn is None or self._one is not None or (run is not None and run.evicts and not run.last):
            return keys
        if run is None:
            self._hear(keys)
        else:
            self._at_end(run, keys)
        loose = turn.council.tied()
        return mx.depends([keys], loose)[0] if loose else keys

    def _at_end(self, run: Run | Seat, keys: mx.array) -> None:
        """Have a council decide for the next token, where a run takes no more, or a seat is the last."""
        turn = self.turn
        if turn is not None and run.evicts:
            turn.council.go_on(turn.caches)
        elif turn is not None and run.rows >= self.plan.full and self.members.alike:
            turn.council.hear(self, run.end, turn.count, keys)

    def _hear(self, keys: mx.array) -> None:
        """Have a council decide for the next token, where it serves such layers."""
        layer, turn, plans = self.as_it_is, self.turn, self.members.plans
        if layer is None or layer.each is None or turn is None or not self.members.alike:
            return
        if decoding.any_due(plans, layer) and turn.council.serves(self.plan, layer):
            turn.council.hear(self, layer.tokens_seen, turn.count, keys)

    def _update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        length = keys.shape[2]
        own = self.members.own(length)
        if self._is_one(own, length):
            if self._one is None:
                self._one = self._alone(self._parts[0].layer, 0, self._nan, self.unseen)
                self._one.joined = True
            self._length = length
            rows: tuple[mx.array, mx.array] = self._one.update_and_fetch(keys, values)
            return rows
        parts, decodes = self._as_they_are, self._decodes(own, length)
        self.check_pending()
        if waiting := [i for i in self.members.undecided if self._held()[i]]:
            keys = mx.depends([keys], [changing(self.number, self.members.change.taken(waiting))])[0]
        if decodes:
            parts = [together(parts, self.members.plans, keys, values)]
        else:
            apart = split(self.parts, own, self.members.plans)
            parts = [read(self._plan(part), part, keys, values) for part in apart]
        watching = self.plan.method.scorer.reads_queries
        if watching and self.plan.options.queries != "model":
            parts = [stood_in(self._plan(part), part, keys) for part in parts]
        expects = watching and self.plan.options.queries == "model"
        self.unseen = "computes attention by itself" if expects else ""
        self._parts, self._length, self.members = parts, length, self.members.after(own)
        self._shapes = (keys.shape, values.shape) if decodes else ((), ())
        if length > 1:
            found = [mx.any(mx.isnan(part.own(keys))) for part in parts if part.new]
            self._nan = mx.any(mx.stack(found)) if found else None
        if self.updated is not None:
            self.updated(self)
        return self.keys_and_values()

    @property
    def evicted(self) -> bool:
        """As of ``vqx.EvictingCache``, while all sequences decode."""
        if self._one is not None:
            return bool(self._one.evicted)
        layer = self._parts[0].layer
        return self._together and layer is not None and layer.evicted and layer.heads == 1

    @property
    def under_way(self) -> bool:
        """Whether tokens are added to a layer that is as it was, under masks that are the host's."""
        return self._run is not None

    @property
    def gone(self) -> bool:
        """Whether a token's row is known to stand over one that went."""
        run = self._run
        return run is not None and run.evicts and run.added > 0

    def takes(self, keys: mx.array, mask: Any) -> bool:
        """As of ``vqx.EvictingCache``, under the batch's own masks; of a prompt read alike alone."""
        if self._one is not None:
            return bool(self._one.takes(keys, self._alike(mask, self._length)))
        layer = self._parts[0].layer
        if not self.unseen or not self._together or layer is None:
            return False
        due = decoding.any_due(self.members.plans, layer)
        return keys.shape[1] == layer.rows.keys.shape[1] and self.plan.takes_mass(layer, due)

    def observe(
        self,
        queries: mx.array,
        keys: mx.array,
        scale: float,
        mask: Any,
        sinks: mx.array | None,
        weights: mx.array | None = None,
    ) -> None:
        """See the queries of the forward under way (as of ``vqx.EvictingCache``)."""
        if self._one is not None:
            self._one.observe(queries, keys, scale, self._alike(mask, queries.shape[2]), sinks, weights)
            return
        if not self.unseen:
            return
        numbers = mask if isinstance(mask, mx.array) and mask.dtype != mx.bool_ else None
        self.unseen, logits = unusable(self.plan, self._any(), keys, numbers)
        if self.unseen:
            return
        if not logits:
            heads = in_lanes(self._parts)
            mask = (
                joined.padding(tuple(rows * heads for rows in self._rows())) if self._together else "causal"
            )
        kept = None if self._together else max(self._rows())
        mass = None if weights is None else mx.mean(weights, axis=2)[:, :, 0]
        shown = Shown(queries, keys, scale, mask, sinks, logits, kept, mass)
        self._parts = [watched(self._plan(part), part, shown) for part in self._parts]
        self._hear(keys)

    def masks(self, mask: Any, query_heads: int, length: int) -> list[tuple[int, int, Any]]:
        """For tiles of the forward's queries the masks that attention has to use: this layer's own."""
        if self._one is not None:
            mask = self._alike(mask, length)
            tiles: list[tuple[int, int, Any]] = self._one.masks(mask, query_heads, length)
            return tiles
        if self._run is not None:
            return [(0, length, self._run.mask())]
        if self._together and isinstance(mask, mx.array) and mask.dtype == mx.bool_:
            layer = self._any()
            if layer.each is not None and mask is joined.padding(layer.each.rows) and layer.heads == 1:
                return [(0, length, mask)]
        apart = in_lanes(self._parts) == 1
        if apart and isinstance(mask, mx.array) and mask.dtype != mx.bool_:
            return [(0, length, mask)]
        rows = self._rows()
        if self._together:
            whole = [(0, length, joined.padding(rows))]
            return whole if apart else masks.of_lane(self._any(), rows, query_heads)
        own = self._own()
        if apart:
            return [(0, length, masks.causal(rows, [skip for skip, _ in own], length))]
        return [*masks.of_lanes(self._parts, own, self.tokens_seen, length, query_heads)]

    def _alike(self, mask: Any, length: int) -> Any:
        """The mask while the sequences have one history: where the host's is another layer's, they differ."""
        of_batch = isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.ndim == 4
        return (None if length == 1 else "causal") if of_batch else mask

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """As attention reads them: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        if self._one is not None:
            both: tuple[mx.array, mx.array] = self._one.keys_and_values()
            return both
        if self._together and self._parts[0].layer is not None:
            return attended(self.plan, self._parts[0].layer)
        return side_by_side(self.plan, self._parts, self._length)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """The mask of N new tokens: booleans ``[B, 1, N, rows + N]`` where sequences differ."""
        if self.turn is not None:
            self.turn.begin(self)
        run = self._run
        goes_on = run is not None and self.members.left is None and (run.left or run.evicts)
        if run is not None and goes_on and N == 1 and window_size is None:
            mask = run.mask(1)
            if mask is not None or not return_array:
                return mask
        self._decide()
        own = self.members.own(N)
        if window_size is not None or self._is_one(own, N):
            one = self._one or self._alone(self._parts[0].layer, 0)
            return one.make_mask(N, return_array, window_size)
        rows = self.tokens_kept
        if self._decodes(own, N):
            mask = joined.padding(tuple(n + 1 for n in rows))
            return mx.ones((1, rows[0] + 1), mx.bool_) if mask is None and return_array else mask
        # a sequence of which nothing is read is not settled either
        rows = tuple(n if new else held for n, held, (_, new) in zip(rows, self._held(), own, strict=True))
        return masks.causal(rows, [skip for skip, _ in own], N)

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep these sequences alone, in this order."""
        self._undo()
        places = [int(old) for old in batch_indices]
        place = {old: new for new, old in enumerate(places)}
        parts = []
        for part in self.parts:
            stay = sorted((place[old], i) for i, old in enumerate(part.members) if old in place)
            if stay:
                layer = None if part.layer is None else joined.take(part.layer, [i for _, i in stay])
                parts.append(Part(tuple(new for new, _ in stay), layer))
        self._parts, self.members = parts, self.members.taken(places)

    def extend(self, other: "EvictingBatch") -> None:
        """Take the sequences of another batch in, behind those here."""
        check_alike(self, other)
        self._undo()
        other._undo()
        first, parts = len(self), [*self.parts]
        parts += [part._replace(members=tuple(first + i for i in part.members)) for part in other.parts]
        self.members = self.members.joined(other.members)
        self._parts, self.allotment = parts, self.allotment or other.allotment
        found = [nan for nan in (self._nan, other._nan) if nan is not None]
        self._nan = mx.any(mx.stack(found)) if found else None

    def extract(self, idx: int) -> Any:
        """The cache of one sequence, which goes on alone as it would have gone on here."""
        self._undo()
        part = next(part for part in self.parts if idx in part.members)
        layer = None if part.layer is None else joined.take(part.layer, [part.members.index(idx)])
        if layer is not None:  # what is taken later would hold the whole batch until then
            mx.async_eval(layer.rows.keys, layer.rows.values, *layer.carried)
        cache = self._alone(layer, idx, self._nan)
        if self.turn is not None:
            cache.turn = self.turn.made_of(self.number)
            cache.turn.join(cache)
        return cache

    @property
    def change(self) -> Change:
        """How much attention changed the hidden state of each sequence."""
        return self.members.change

    def see(self, before: mx.array, change: mx.array) -> None:
        """As of ``vqx.EvictingCache``, of each sequence's own tokens."""
        if self._one is None and self.members.undecided:
            self.members = self.members.seen(self._own(), before, change)

    def allot(self, sequence: int, method: Method) -> None:
        """Take the method that the layers decided on for a sequence."""
        self.members = self.members.decided(sequence, self.plan._replace(method=method))

    def is_trimmable(self) -> bool:
        """As of ``vqx.EvictingCache``."""
        return False

    def trim(self, n: int) -> int:
        if n == 0:
            return 0
        raise ValueError(f"cannot take back {n} tokens: a cache that evicts is not trimmable")

    @property
    def state(self) -> list[mx.array]:
        """Every array held: mlx-lm evaluates these after each chunk of a prompt."""
        arrays: list[mx.array] = []
        for part in self.parts:
            if part.layer is not None:
                arrays += [part.layer.rows.keys, part.layer.rows.values, *part.layer.carried]
        arrays += [] if self.change.total is None else [self.change.total]
        return arrays if self._nan is None else [*arrays, self._nan]

    def loose(self) -> list[mx.array]:
        """As of ``vqx.EvictingCache``."""
        if self._one is not None:
            tied: list[mx.array] = self._one.loose()
            return tied
        if self.turn is not None and self.turn.council.loose:
            return self.turn.council.tied()
        if self._run is not None:
            return []
        held = [part.layer for part in self._parts if part.layer is not None]
        return [
            *(array for layer in held for array in layer.untied),
            *([] if self._nan is None else [self._nan]),
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of every array held, room for growth and bookkeeping included."""
        return sum(array.nbytes for array in self.state)

    def size(self) -> int:
        """Rows held of the longest sequence."""
        return max(self._held())

    def empty(self) -> bool:
        return max(self.tokens_seen) == 0

    def awaits(self, length: int, rows: int) -> bool:
        """Whether the queries of a forward of ``length`` tokens over so many rows are still to be shown."""
        return bool(self.unseen) and (self._length, self._width) == (length, rows)

    @property
    def position(self) -> mx.array:
        """As many as attention reads rows, ``[B, H, n]`` int32, for models that write attention out."""
        return mx.zeros((len(self), self._any().rows.keys.shape[1], self._width), mx.int32)

    def check_pending(self) -> None:
        """Raise what the last forward left to be said."""
        check(self.number, self.unseen, self._nan, self._length)
        self._nan = None

    def _undo(self) -> None:
        if self.turn is not None:
            self.turn.undo()

    @property
    def _width(self) -> int:
        """Rows that attention reads."""
        return in_lanes(self._parts) * (max(self._rows()) + (0 if self._together else self._length))

    @property
    def _together(self) -> bool:
        """Whether the last forward read one token of each, and what one layer holds, and nothing beside."""
        return len(self._parts) == 1 and self._parts[0].new == self._length == 1

    def _rows(self) -> tuple[int, ...]:
        """Of each sequence the rows before the forward's own, or all where it decoded."""
        held = self._held()
        if self._together:
            return held
        return tuple(n - new for n, (_, new) in zip(held, self._own(), strict=True))

    def _own(self) -> Own:
        """Of each sequence the last forward's tokens that it skipped, and those that it read."""
        return of_each(self._parts, lambda part: ((part.skip, part.new),) * len(part.members))

    def _held(self) -> tuple[int, ...]:
        return of_layers(self._as_they_are, lambda layer: joined.each_of(layer).rows)

    def _any(self) -> Layer:
        found = [part.layer for part in self._as_they_are if part.layer is not None]
        if not found:
            raise ValueError("the caches are empty: nothing was stored yet")
        return max(found, key=lambda layer: layer.heads)

    def _is_one(self, own: Sequence[tuple[int, int]], length: int) -> bool:
        """Whether all sequences have one history, and go on by as many tokens."""
        if set(own) != {(0, length)}:
            return False
        if self._one is not None:
            return True
        part, *others = self._parts
        plain = part.layer is None or part.layer.each is None
        return not others and plain and self.members.alike and part.members == (*range(len(self)),)

    def _decodes(self, own: Sequence[tuple[int, int]], length: int) -> bool:
        """Whether each sequence goes on by one token, so that all are one layer."""
        return (
            length == 1 and set(own) == {(0, 1)} and all(part.layer is not None for part in self._as_they_are)
        )

    def _plan(self, part: Part) -> Plan:
        """Of the part's sequences; while they decode together their budgets may differ from it."""
        return self.members.plans[part.members[0]]

    def _alone(self, layer: Layer | None, place: int, nan: mx.array | None = None, unseen: str = "") -> Any:
        """A cache of one sequence that holds ``layer``, made as the one at ``place``."""
        cache = self.single(layer, nan, unseen)
        cache.plan, cache.change = self.members.plans[place], self.change.taken([place])
        cache.allotment = None if cache.plan.method.share is None else self.allotment
        return cache

    def _decide(self) -> None:
        """As of ``vqx.EvictingCache``, for each sequence when its own rows may be cut."""
        if self.allotment is None or not self.members.undecided:
            return
        held, left = self._held(), rows_left(self._parts, [plan.least for plan in self.members.plans])
        due = [i for i in self.members.undecided if left[i] < held[i]]
        if due:
            self.allotment.decide([self] if self.turn is None else self.turn.caches, due)


def _by_query(plan: Plan, layer: Layer) -> Layer:
    """A layer that has been judged without the row that goes: sequences of a batch are judged by queries."""
    return layer if layer.score is None else settle(plan, layer, room=2)[0]
