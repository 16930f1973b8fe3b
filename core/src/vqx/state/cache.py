"""The cache of one layer: the protocol mlx-lm asks for, over a plan and a layer.

Nothing is evicted inside a forward. What is pending is settled at the start of the next update; kept rows
then stand before new rows, so every causal mask the host makes is right as it is.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx

from vqx.options import Options, at_least
from vqx.scorers import Method
from vqx.state import lanes
from vqx.state.allotment import UNSEEN, Allotment, Change, changing, cosines
from vqx.state.arrival import admit, caught_up
from vqx.state.attention import Known
from vqx.state.batch import EvictingBatch
from vqx.state.council import Council
from vqx.state.exchange import closed, decided, exchanged
from vqx.state.layer import Ahead, Layer, Plan, attended, widths
from vqx.state.members import unfit
from vqx.state.packing import Packing
from vqx.state.positions import Rotary
from vqx.state.processes import Processes
from vqx.state.queries import stand_ins, wait, watch
from vqx.state.refusals import refuse
from vqx.state.rows import without_buffers
from vqx.state.run import Run
from vqx.state.saved import Recipe, Saved, layer_of, parts, written
from vqx.state.seats import Decision, Seat, seated
from vqx.state.settling import judged
from vqx.state.shown import check, unusable
from vqx.state.turn import LONG, Turn


class EvictingCache:
    """At most ``budget`` rows of one layer between forwards (plus ``interval`` while decoding).

    Args:
        method: the scorer, its guards and its budget.
        options: where queries come from, when and how rows go; ``options.queries`` must be set.
        rotary: the model's rotary embedding, for compact positions.
        number: the layer's number, for messages.
        updated: called once new rows are there, with the cache.
        allotment: what the layers decide together, where ``method.share`` says that they do.
        recipe: how it was made, which a file of it says; None: it cannot be saved.
        across: the processes that share the layer's heads; None: they are all here.
        packing: how rows are held in fewer bits, as ``options.bits`` says; None: as they come.
    """

    def __init__(
        self,
        method: Method,
        options: Options,
        *,
        rotary: Rotary | None = None,
        number: int = 0,
        updated: Callable[["EvictingCache"], None] | None = None,
        allotment: Allotment | None = None,
        recipe: Recipe | None = None,
        packing: Packing | None = None,
        across: Processes | None = None,
    ) -> None:
        self.plan = Plan(method, options, rotary, packing, across)
        refuse(self.plan, together=allotment is not None)
        watching = method.scorer.reads_queries and options.queries == "model"
        self._unshown = "computes attention by itself" if watching else ""
        self.number = number
        self.updated = updated
        self.allotment = allotment  # None once it was decided
        self.change = UNSEEN
        self.recipe = recipe
        self.apart: Callable[[], str] = str  # why its model reads no batches; empty where it does
        self.joined = False  # whether other sequences may come to it, which are judged by queries
        self._still: Layer | None = None  # before the run under way
        self._run: Run | Seat | None = None
        self._spare = 0  # tokens that need nothing but room, as far as is known, while none is under way
        self._shapes: tuple[Any, Any] = ((), ())  # of one token's keys and values
        self._read: mx.array | None = None  # the keys that the update under way returned, outside of a run
        self._unseen = ""
        self._nan: mx.array | None = None
        self.turn: Turn | None = None  # what tells a forward that ended in the middle
        self._loose = False  # whether arrays of the forward under way are not yet tied to its logits

    @property
    def layer(self) -> Layer | None:
        """Rows and what goes with them, with nothing left for later; None while nothing was read."""
        layer = self._layer
        if layer is not None and (layer.rows.bare or layer.waiting is not None or layer.ahead is not None):
            self.layer = caught_up(self.plan, layer)
        return self._layer

    @layer.setter
    def layer(self, layer: Layer | None) -> None:
        self._layer, self._spare, self._read = layer, 0, None

    @property
    def _layer(self) -> Layer | None:
        """The layer as it is: what waits in it waits on."""
        run = self._run
        if run is not None and self._still is not None:
            self._unseen, self._read, self._spare = self.unseen, run.read, run.left
            self._still, self._run = run.ended(self._still), None
        return self._still

    @_layer.setter
    def _layer(self, layer: Layer | None) -> None:
        self._still, self._run = layer, None

    @property
    def as_it_is(self) -> Layer | None:
        """Rows and what goes with them, and what is left for later."""
        return self._layer

    @property
    def seat(self) -> Seat | None:
        """The layer's seat in a council, while that decides."""
        return self._run if isinstance(self._run, Seat) else None

    def sit(self, council: Council, place: int, last: bool, held: Decision) -> Seat:
        """Take a seat in a council that decides from now on; the others as of ``vqx.state.seats.Seat``."""
        layer = self._held()
        seat = Seat(council, place, last, self.plan, layer, held, self._shapes, bool(self._unshown))
        self._still, self._run = seated(layer), seat
        return seat

    def foresee(self, ahead: Ahead) -> None:
        """Take what a council decided for the next token."""
        self._layer = self._held()._replace(ahead=ahead)

    @property
    def offset(self) -> int:
        """The position at which the model rotates the next query and key."""
        run = self._run
        if run is not None:
            at: int = run.offset
            return at
        return self.tokens_kept if self.plan.compact else self.tokens_seen

    @property
    def unseen(self) -> str:
        """Why the queries of the last forward could not be used; empty where they were."""
        run = self._run
        return self._unseen if run is None or run.read is None else self._unshown

    @unseen.setter
    def unseen(self, why: str) -> None:
        self._unseen = why

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Settle what is pending, append S rows, and return what attention reads.

        Args:
            keys: ``[B, H, S, D]``, rotated by the model for positions ``offset`` to ``offset + S - 1``.
            values: ``[B, H, S, Dv]``.

        Returns:
            Kept rows followed by new rows; for S = 1 the new row may stand anywhere.

        Raises:
            ValueError: NaN keys in the last chunk, another shape than before, queries that were not shown.
        """
        run, turn = self._run, self.turn
        if run is not None and run.takes(keys, values):
            if turn is not None:
                turn.read(self, self.within(run))
            return self._goes_on(run, keys, values)
        self._decide()
        if turn is not None:
            if keys.shape[2] >= LONG:
                turn.start(keys, 0 if self._layer is None else self._layer.rows.nbytes)
            turn.read(self, self.now())
        alike = not self.unseen and self._nan is None and (keys.shape, values.shape) == self._shapes
        layer = self._layer
        if alike and layer is not None and (self._spare or self.plan.options.interval > 1):
            left = layer if self._spare else closed(self.plan, layer)
            if left is not None:
                spare = self._spare or self.plan.spare(left)
                self._run = Run(self.plan, left, spare, self._shapes, bool(self._unshown))
                self._still = left._replace(rows=without_buffers(left.rows))
                return self._goes_on(self._run, keys, values)
        elif alike and layer is not None:
            found = exchanged(self.plan, layer, keys, values)
            if found is not None:
                self._layer = found
                return self._admitted(*attended(self.plan, found))
        self._check(keys, values)
        if self.allotment is not None and layer is not None:
            keys = mx.depends([keys], [changing(self.number, self.change)])[0]
        fresh = None if turn is None else turn.admitted(self, keys, values)
        layer = admit(self.plan, layer, keys, values) if fresh is None else fresh
        if self.plan.method.scorer.reads_queries and self.plan.options.queries != "model":
            layer, queries = stand_ins(self.plan, layer, keys)
            layer = watch(self.plan, layer, queries[:, :, None], scale=keys.shape[-1] ** -0.5)
        self.layer = layer
        if keys.shape[2] > 1:
            self._look(keys)
        elif self.allotment is None:
            self._spare, self._shapes = self.plan.spare(layer), (keys.shape, values.shape)
        self._loose = True
        keys, values = self.keys_and_values()
        if not self._unshown:  # attention is not watched, so what it reads is what can be tied
            keys = mx.depends([keys], self.loose())[0]
        return self._admitted(keys, values)

    def _look(self, keys: mx.array) -> None:
        """Find out whether a key of the forward is NaN; of all layers at once where one launch does it."""
        turn, layer = self.turn, self._still
        alone = turn is None or self.plan.packing is not None or layer is None or layer.heads > 1
        if alone or turn is None or not turn.look(self, keys):
            self._nan = mx.any(mx.isnan(keys))

    def looked(self, nan: mx.array) -> None:
        """Take whether a key of the forward is NaN, ``[1]`` booleans."""
        self._nan = nan

    def _goes_on(self, run: Run | Seat, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As ``update_and_fetch`` for a token of a run."""
        keys, values = run.longer(keys, values)
        if self.updated is not None:
            self.updated(self)
        if self.turn is not None:
            self.turn.done()
        return (keys, values) if run.left or self._unshown else (self._decided(keys), values)

    def _admitted(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """What attention reads, of tokens that are all written."""
        self.unseen = self._unshown
        if self.updated is not None:
            self.updated(self)
        if self.turn is not None:
            self.turn.done()
        # let go once the queries were shown: a view would keep the buffer from being written in place
        self._read = keys if self._unshown else None
        return (keys, values) if self._unshown else (self._decided(keys), values)

    def _decided(self, keys: mx.array) -> mx.array:
        """``keys``, with what is decided for the next token, of a layer that reads without a query."""
        run = self._run
        if isinstance(run, Seat):
            return self._told(keys) if run.last else keys
        layer = self._layer
        if layer is None or layer.ahead is not None or not self.plan.due(layer):
            return keys
        if self.turn is not None and self.turn.council.serves(self.plan, layer):
            return self._told(keys)
        ahead = decided(self.plan, layer) if self.plan.options.interval > 1 else None
        if ahead is None:
            return keys
        self._layer = layer._replace(ahead=ahead)
        keys = mx.depends([keys], ahead.carried)[0]
        return keys

    def _told(self, keys: mx.array) -> mx.array:
        """``keys``, with what the council decided now that the layer has read its token without a query."""
        if self.turn is None:
            return keys
        if self._run is None:
            self.turn.council.hear(self, self.tokens_seen, self.turn.count, keys)
        else:
            self.turn.council.go_on(self.turn.caches)
        loose = self.turn.council.tied()
        return mx.depends([keys], loose)[0] if loose else keys

    def loose(self) -> list[mx.array]:
        """The arrays of this forward that no logits need, said once: what attention gives is tied to them.

        Else they would wait for the next forward, and a thread may not finish what another began.
        """
        if self.turn is not None and self.turn.council.loose:
            return self.turn.council.tied()
        if self._run is not None or self._layer is None:
            return []
        if self._layer.ahead is not None:
            return self._layer.ahead.carried
        waiting = self._layer.waiting
        known = [] if waiting is None or waiting.known is None else [waiting.known.mass]
        known = known if self._layer.score is None else [self._layer.score]
        if not self._loose:
            return known
        self._loose = False
        return [*known, *self._layer.carried, *([] if self._nan is None else [self._nan])]

    def awaits(self, length: int, rows: int) -> bool:
        """Whether ``length`` queries over so many rows are still to be shown."""
        layer = self._layer
        return bool(self.unseen) and layer is not None and (layer.last, layer.rows.length) == (length, rows)

    def goes_on(
        self, queries: mx.array, keys: mx.array, scale: float, sinks: mx.array | None, mask: Any = None
    ) -> bool:
        """Hold a query of a run, as of ``observe``, where nothing else is to be done; whether that was so."""
        run = self._run
        if run is None or mask is not None or not (run.left or run.evicts):
            return False
        if not run.asked(queries, keys, scale, sinks):
            return False
        if not run.last or not self._unshown or self.turn is None:
            return True
        self.turn.council.go_on(self.turn.caches)
        return False  # what was decided is to be tied to what attention gives

    def observe(
        self,
        queries: mx.array,
        keys: mx.array,
        scale: float,
        mask: Any,
        sinks: mx.array | None,
        weights: mx.array | None = None,
    ) -> None:
        """See the queries of the forward under way (called by the attention hook).

        Args:
            queries: ``[B, H * G, S, D]``, as attention gets them.
            keys: ``[B, H, n, D]``, what ``update_and_fetch`` returned; or what attention made from one head
                held, with as many heads and channels as it likes.
            scale: the model's own scale.
            mask: None, ``"causal"``, or an array: booleans, or numbers that are added to the logits.
            sinks: ``[H * G]`` learned logits that join the softmax's denominator, or None.
            weights: ``[B, H, G, S, n]`` float32, where attention says them; None: they are computed if a
                score asks for them.
        """
        mass = None if weights is None or queries.shape[2] > 1 else mx.mean(weights, axis=2)[:, :, 0]
        if self._run is not None and not self.unseen:
            return
        layer = self._layer
        read, self._read = self._read, None
        if layer is None:
            return
        if keys is read and mask is None and self.plan.defers:
            before = layer.waiting
            if before is None or before.sinks is sinks:
                layer, self.unseen = wait(self.plan, layer, queries, scale, sinks, mass), ""
                self._layer = layer
                if self.plan.due(layer):
                    if self.turn is not None and self.turn.council.serves(self.plan, layer):
                        self.turn.council.hear(self, layer.tokens_seen, self.turn.count, keys)
                    else:
                        layer = layer._replace(ahead=decided(self.plan, layer))
                        if mass is not None and layer.ahead is None and not self.joined:
                            layer = judged(self.plan, caught_up(self.plan, layer))
                        self._layer = layer
                return
        why, logits = unusable(self.plan, layer, keys, mask)
        if logits and layer.rows.keys.shape[1] == 1 and self.plan.method.merge is not None:
            raise ValueError(
                f"layer {self.number}: attention makes keys and values from the rows held, so rows cannot be"
                " merged; use a method that drops them"
            )
        if not self.unseen:  # they are not wanted, or another layer's, which shares this cache
            return
        self.unseen = why
        if not why:
            batch, _, length, width = queries.shape
            grouped = queries.reshape(batch, layer.rows.keys.shape[1] * layer.heads, -1, length, width)
            layer = caught_up(self.plan, layer)
            known = None if mass is None else Known(mass)
            layer = watch(
                self.plan, layer, grouped, scale=scale, mask=mask, sinks=sinks, keys=keys, logits=logits,
                known=known, given=weights,
            )  # fmt: skip
            self.layer = layer._replace(score=None) if self.joined else judged(self.plan, layer)

    def takes(self, keys: mx.array, mask: Any) -> bool:
        """Whether ``observe`` is better told the weights of the attention under way, with such a mask.

        Not where attention makes keys of several heads from one held.
        """
        layer = self._layer
        if not self.unseen or layer is None or not (mask is None or isinstance(mask, str)):
            return False
        if keys.shape[1] != layer.rows.keys.shape[1] * layer.heads:
            return False
        if layer.last > 1:
            return self.plan.takes_weights(layer)
        return self.plan.takes_mass(layer, self.plan.due(layer))

    @property
    def evicted(self) -> bool:
        """Whether rows went, and each head has the others in a lane of its own."""
        return self._still is not None and self._still.evicted and self._still.heads == 1

    @property
    def gone(self) -> bool:
        """As ``evicted``, of what attention reads now: a seat's first token stands over a row that went."""
        run = self._run
        return self.evicted or (run is not None and run.evicts and run.added > 0)

    @property
    def in_lanes(self) -> bool:
        """Whether the heads of the layer share one lane, so that attention needs the cache's own masks."""
        return self._still is not None and self._still.heads > 1

    def masks(self, mask: Any, query_heads: int, length: int) -> list[tuple[int, int, Any]]:
        """For tiles of the forward's queries, first to last + 1, the mask that attention has to use.

        One tile with the host's own ``mask``, unless the heads of the layer share one lane.
        """
        layer = self._layer
        if layer is None or layer.heads == 1:
            return [(0, length, mask)]
        position, head = layer.rows.position, layer.rows.columns["head"]
        return [*lanes.masks(position, head, layer.heads, query_heads, layer.tokens_seen - length, length)]

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The rows held, as attention reads them: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        return attended(self.plan, self._held())

    def now(self) -> tuple[dict[str, Any], Any]:
        """All that the cache is, for ``go_back``."""
        return vars(self).copy(), None if self._run is None else self._run.now()

    def within(self, run: Run | Seat) -> tuple[dict[str, Any], Any]:
        """All of it that may be another once a run took a token, and what may be asked of it then."""
        return {"_still": self._still, "_run": run, "_unseen": "", "_read": None}, run.now()

    def go_back(self, before: tuple[dict[str, Any], Any]) -> None:
        """Be as the cache was when ``now`` said so."""
        attributes, run = before
        vars(self).update(attributes)
        if self._run is not None:
            self._run.go_back(run)

    @property
    def keys(self) -> mx.array | None:
        """The buffer of keys: models split by layers tie what they send to the last layer's."""
        return None if self._layer is None else self._layer.rows.keys

    @keys.setter
    def keys(self, keys: mx.array) -> None:
        layer = self._held()
        self._layer = layer._replace(rows=layer.rows._replace(keys=keys), ahead=None)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """The mask of N new tokens: None, ``"causal"``, or booleans ``[N, rows + N]``.

        Models ask for it before any layer reads these tokens.
        """
        if self.turn is not None:
            self.turn.begin(self)
        if window_size is not None:
            raise ValueError(
                f"layer {self.number}: the model asks for a sliding window of {window_size} over rows that"
                " are evicted; vqx does not support this model"
            )
        if N == 1 or not return_array:
            return None if N == 1 else "causal"
        kept = self.tokens_kept
        return mx.arange(kept + N)[None] <= mx.arange(kept, kept + N)[:, None]

    @property
    def state(self) -> list[Any]:
        """Every array held: mlx-lm evaluates these after each chunk of a prompt.

        Where the cache knows how it was made, words stand before them: mlx-lm writes both to files.
        """
        facts, arrays = self._facts_and_arrays()
        return [*arrays.values()] if self.recipe is None else written(self.recipe(), facts, arrays)

    def restore(self, saved: Saved, like: Layer) -> None:
        """Go on where a cache made as this one was saved.

        Args:
            saved: of ``vqx.state.saved.read``.
            like: the layer of a cache made as this one that has read anything.

        Raises:
            ValueError: says what does not fit.
        """
        facts, arrays = saved.facts, saved.arrays
        if self.allotment is not None:
            if facts.get("budget") is not None:
                self.allot(0, self.allotment.method(self.number, facts["budget"]))
            elif "shown" in arrays:
                at_least("tokens", facts.get("shown"), 1)
                self.change = Change(arrays["shown"].reshape(1), (facts["shown"],))
        elif facts.get("budget") != self.plan.method.budget:
            raise ValueError(
                f"layer {self.number}: the cache was saved with a budget of {facts.get('budget')!r}, and its"
                f" method now gives {self.plan.method.budget}: make it anew"
            )
        packing = self.plan.packing
        if (
            packing is not None
            and facts.get("empty") is not True
            and facts.get("dtype") != str(packing.dtype)
        ):
            raise ValueError(
                f"layer {self.number}: the cache was saved from numbers of {facts.get('dtype')!r}, and the"
                f" model makes {packing.dtype}: make it anew"
            )
        if facts.get("empty") is not True:
            self.layer = layer_of(facts, arrays, self.plan, like)
        self.unseen, self._nan = str(facts.get("unseen", "")), arrays.get("nan")

    def is_trimmable(self) -> bool:
        """An evicted row cannot come back, and statistics cannot forget: see ``vqx.state.reversible``.

        Before the first eviction too: mlx-lm asks once, and speculates on across it.
        """
        return False

    def trim(self, n: int) -> int:
        """Refuse, unless there is nothing to take back."""
        if n == 0:
            return 0
        raise ValueError(
            f"cannot take back {n} tokens: a cache that evicts is not trimmable unless it was made with undo;"
            " start from a fresh cache"
        )

    def size(self) -> int:
        """Rows held now."""
        return 0 if self._layer is None else self._layer.size

    def empty(self) -> bool:
        return self._layer is None

    @property
    def arrays(self) -> list[mx.array]:
        """Every array held."""
        return [*self._facts_and_arrays()[1].values()]

    @property
    def nbytes(self) -> int:
        """Bytes of every array held, room for growth and bookkeeping included."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def tokens_seen(self) -> int:
        if self._run is not None:
            return self._run.end
        return 0 if self._still is None else self._still.tokens_seen

    @property
    def generated(self) -> int:
        """Tokens generated one by one since the last prompt."""
        if self._still is None:
            return 0
        return self._still.generated + (0 if self._run is None else self._run.added)

    @property
    def tokens_kept(self) -> int:
        """Rows that remain for the next forward."""
        self._decide()
        return 0 if self._layer is None else self.plan.rows_next(self._layer)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the keys and values of the rows that remain."""
        return self._row_bytes() * self.tokens_kept

    @property
    def full_seq_bytes(self) -> int:
        """Bytes that the keys and values of all tokens seen would take, as they came."""
        return self._row_bytes(dense=True) * self.tokens_seen

    @property
    def compression_ratio(self) -> float:
        """``full_seq_bytes / kept_bytes``; 1.0 while nothing is stored."""
        return self.full_seq_bytes / self.kept_bytes if self.kept_bytes else 1.0

    @property
    def bookkeeping_bytes(self) -> int:
        """Bytes of positions, statistics and remembered queries."""
        if self.layer is None:
            return 0
        return self.nbytes - self.layer.rows.keys.nbytes - self.layer.rows.values.nbytes

    @property
    def position(self) -> mx.array:
        """The positions of the rows held, ``[B, H, n]`` int32, in the order in which they are stored."""
        self._held()
        return cast(Layer, self.layer).rows.position

    @property
    def merge(self) -> Callable[[Sequence["EvictingCache"]], EvictingBatch]:
        """Caches of one layer, a sequence each -> the cache of a batch (mlx-lm asks for it by this name).

        Raises:
            AttributeError: what the method does cannot be done in one batch; mlx-lm's server then reads one
                sequence at a time.
        """
        if why := unfit(self.plan) or self.apart():
            raise AttributeError(f"layer {self.number}: no batches, since {why}")
        return EvictingBatch

    def another(self, layer: Layer | None, nan: mx.array | None = None, unseen: str = "") -> "EvictingCache":
        """A cache made as this one, that holds ``layer``; the others as ``shown.check`` takes them."""
        other = copy.copy(self)
        other.layer, other.unseen, other._nan, other.turn = layer, unseen, nan, None
        other._shapes = ((), ())
        return other

    def see(self, before: mx.array, change: mx.array) -> None:
        """Hidden states ``[B, S, hidden]`` before the layer's attention, and what it adds to them.

        Only layers that decide together look, and at no single tokens after the first forward, so that
        decoding costs nothing.
        """
        batch, length, _ = before.shape
        if self.allotment is None or (length == 1 and self.change.tokens != (0,)):
            return
        self.change = self.change.more(mx.sum(cosines(before, change))[None], (batch * length,))

    def allot(self, sequence: int, method: Method) -> None:
        """Take the method that the layers decided on; ``sequence`` is 0."""
        self.plan, self.allotment, self.change = self.plan._replace(method=method), None, UNSEEN

    def check_pending(self) -> None:
        """Raise what the last forward left to be said."""
        check(self.number, self.unseen, self._nan, 0 if self._layer is None else self._layer.last)
        self._nan = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "EvictingCache":
        # a layer is a value, which no one changes; what layers decide together is copied with all of them
        turn = copy.deepcopy(self.turn, memo)
        self._layer = self._layer  # a run is of one cache alone
        other = copy.copy(self)
        other.turn = turn
        if other.turn is not None:
            other.turn.join(other)
        return other

    def _decide(self) -> None:
        """Have the layers decide on their methods together, once the least budget may be cut to."""
        if self.allotment is not None and self._layer is not None and self.plan.least.due(self._layer):
            self.allotment.decide([self] if self.turn is None else self.turn.caches, (0,))

    def _facts_and_arrays(self) -> tuple[dict[str, Any], dict[str, mx.array]]:
        """What is known of the cache, and every array it holds, by name."""
        shared, budget = self.allotment, self.plan.method.budget
        facts: dict[str, Any] = {"number": self.number, "unseen": self.unseen, "budget": budget}
        if self.layer is None:
            return {**facts, "budget": None if shared else budget, "empty": True}, {}
        told, arrays = parts(self.layer)
        if self.plan.packing is not None:
            facts["dtype"] = str(self.plan.packing.dtype)
        if self._nan is not None:
            arrays["nan"] = self._nan
        if shared is not None:
            facts |= {"budget": None, "shown": self.change.tokens[0]}
            arrays |= {} if self.change.total is None else {"shown": self.change.total}
        return {**facts, **told}, arrays

    def _held(self) -> Layer:
        if self._layer is None:
            raise ValueError("the cache is empty: nothing was stored yet")
        return self._layer

    def _row_bytes(self, *, dense: bool = False) -> int:
        if self._layer is None:
            return 0
        rows, packing = self._layer.rows, self.plan.packing
        batch, heads, _, width = rows.keys.shape
        number, channels = rows.keys.dtype.size, width + rows.values.shape[3]
        if dense and packing is not None:
            number, channels = packing.dtype.size, packing.width + packing.value_width
        return int(batch * heads * self._layer.heads * channels * number)

    def _check(self, keys: mx.array, values: mx.array) -> None:
        self.check_pending()
        if self._layer is None:
            return
        batch, heads, *_ = self._layer.rows.keys.shape
        each = zip(("keys", "values"), (keys, values), widths(self.plan, self._layer.rows), strict=True)
        for name, new, width in each:
            held = (batch, heads * self._layer.heads, self._layer.size, width)
            if (*new.shape[:2], new.shape[3]) != (batch, heads * self._layer.heads, width):
                raise ValueError(
                    f"layer {self.number}: {name} of shape {new.shape} do not fit the rows held,"
                    f" {held} [batch, heads, rows, width]; use a fresh cache for another batch"
                )
