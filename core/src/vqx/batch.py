"""The cache of one layer for sequences that join and leave: what mlx-lm's batches ask of a cache.

A prompt is read by each kind of sequence as it would be read alone: those with the same history, and as many
new tokens, are one layer (a part), and only attention sees all of them side by side. The first token after
it joins the parts (``vqx.joined``), so that decoding treats the batch as a whole.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from vqx import joined
from vqx.allotment import Allotment
from vqx.layer import Layer, Plan, admit, caught_up, dense, settle, stand_ins, wait, watch
from vqx.saved import Recipe
from vqx.shown import check, unusable


class Part(NamedTuple):
    """Sequences of a batch with one layer; those without a token have none."""

    members: tuple[int, ...]
    layer: Layer | None = None
    new: int = 0
    """Of the last forward's tokens, those that are its own."""
    skip: int = 0
    """Padding before them."""


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
            if why := unfit(cache.plan, cache.allotment):
                raise ValueError(f"no batches: {why}")
            if not _alike(first, cache):
                raise ValueError(
                    "caches of different methods or options cannot be read in one batch: make them alike"
                )
            cache.check_pending()
        self.plan: Plan = first.plan
        self.number: int = first.number
        self.recipe: Recipe | None = first.recipe
        self.single: Callable[..., Any] = first.another
        self.updated: Callable[[Any], None] | None = first.updated
        self.unseen = ""
        empty = tuple(i for i, cache in enumerate(caches) if cache.layer is None)
        held = [Part((i,), cache.layer) for i, cache in enumerate(caches) if cache.layer is not None]
        self.parts: list[Part] = [*([Part(empty)] if empty else []), *held]
        self._skip = (0,) * len(caches)  # tokens of padding to come before each sequence's own
        self._left: tuple[int, ...] | None = None  # each sequence's own tokens until the padding behind them
        self._length = 0  # tokens of the last forward, padding included
        self._read_keys: mx.array | None = None  # the keys that the update under way returned
        self._nan: mx.array | None = None

    def __len__(self) -> int:
        return sum(len(part.members) for part in self.parts)

    def __deepcopy__(self, memo: dict[int, Any]) -> "EvictingBatch":
        # arrays and layers are values, which no one changes: only the list of them is
        other = copy.copy(self)
        other.parts = [*self.parts]
        return other

    @property
    def tokens_seen(self) -> tuple[int, ...]:
        """Of each sequence."""
        return self._of_each(lambda layer: joined.each_of(layer).tokens_seen)

    @property
    def tokens_kept(self) -> tuple[int, ...]:
        """Of each sequence, the rows that remain for the next forward."""
        return self._of_each(lambda layer: joined.rows_after(self.plan, layer))

    @property
    def offset(self) -> int | mx.array:
        """The position at which the model rotates the next query and key: ``[B]`` where sequences differ."""
        at = tuple(seen - skip for seen, skip in zip(self.tokens_seen, self._skip, strict=True))
        return at[0] if len(set(at)) == 1 else mx.array(at)

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
        if left_padding is not None and max(left_padding) > 0:
            if not self.empty():
                raise ValueError("left padding can be skipped before a sequence's first token only")
            self._skip = tuple(a + int(b) for a, b in zip(self._skip, left_padding, strict=True))
        if lengths is not None and right_padding is not None and max(right_padding) > 0:
            self._left = tuple(int(length) for length in lengths)

    def finalize(self) -> None:
        """The prompts were read; what was padding was never held."""
        self._left = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Settle what is pending, add each sequence's tokens, and return what attention reads.

        Args:
            keys: ``[B, H, S, D]``, rotated by the model from each sequence's ``offset`` on.
            values: ``[B, H, S, Dv]``.

        Raises:
            ValueError: as of ``vqx.EvictingCache``.
        """
        self.check_pending()
        length = keys.shape[2]
        own = self._own_tokens(length)
        if self._decodes(own, length):
            parts = [self._joined(keys, values)]
        else:
            self._catch_up()
            parts = [self._read(part, keys, values) for part in self._split(own)]
        watching = self.plan.method.scorer.reads_queries
        if watching and self.plan.options.queries != "model":
            parts = [self._stand_in(part, keys) for part in parts]
        expects = watching and self.plan.options.queries == "model"
        self.unseen = "computes attention by itself" if expects else ""
        self.parts, self._length = parts, length
        self._skip = tuple(skip - skipped for skip, (skipped, _) in zip(self._skip, own, strict=True))
        if self._left is not None:
            self._left = tuple(left - new for left, (_, new) in zip(self._left, own, strict=True))
        if length > 1:
            found = [mx.any(mx.isnan(self._own(part, keys))) for part in parts if part.new]
            self._nan = mx.any(mx.stack(found)) if found else None
        if self.updated is not None:
            self.updated(self)
        read = self.keys_and_values()
        self._read_keys = read[0] if self.unseen else None
        return read

    def observe(
        self, queries: mx.array, keys: mx.array, scale: float, mask: Any, sinks: mx.array | None
    ) -> None:
        """See the queries of the forward under way (as of ``vqx.EvictingCache``)."""
        read, self._read_keys = self._read_keys, None
        if not self.unseen:
            return
        if keys is read and mask is None and self.plan.defers and self._waits(queries, scale, sinks):
            self.unseen = ""
            return
        self._catch_up()
        self.unseen, logits = unusable(self.plan, self._any(), keys, mask)
        if self.unseen:
            return
        if not logits and self._ragged():
            mask = joined.padding(self._rows()) if self._together else "causal"
        shown = _Shown(queries, keys, mask, sinks, scale, logits)
        self.parts = [self._watched(part, shown) for part in self.parts]

    def masks(self, mask: Any, query_heads: int, length: int) -> list[tuple[int, int, Any]]:
        """The mask that attention has to use: this layer's own, where its sequences differ."""
        numbers = isinstance(mask, mx.array) and mask.dtype != mx.bool_
        return [(0, length, mask if numbers or not self._ragged() else self._mask())]

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """As attention reads them: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        if len(self.parts) == 1 and self.parts[0].layer is not None and self._together:
            return dense(self.plan, self.parts[0].layer)
        kept = max(self._rows())
        order: list[int] = []
        both: list[list[mx.array]] = [[], []]
        for part in self.parts:
            order += part.members
            for side, array in zip(both, self._filled(part), strict=True):
                old = array.shape[2] - part.new
                before = _padded(array[:, :, :old], 0, kept - old)
                new = _padded(array[:, :, old:], part.skip, self._length - part.skip - part.new)
                side.append(mx.concatenate([before, new], axis=2))
        keys, values = (mx.concatenate(side, axis=0) for side in both)
        if order != [*range(len(order))]:
            back = mx.argsort(mx.array(order))
            keys, values = keys[back], values[back]
        return keys, values

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """The mask of N new tokens: booleans ``[B, 1, N, rows + N]`` where sequences differ."""
        if window_size is not None:
            raise ValueError(
                f"layer {self.number}: the model asks for a sliding window of {window_size} over rows that"
                " are evicted; vqx does not support this model"
            )
        own = self._own_tokens(N)
        rows = self._of_each(lambda layer: joined.rows_after(self.plan, layer))
        if self._decodes(own, N):
            mask = joined.padding([n + 1 for n in rows])
            return mx.ones((1, rows[0] + 1), mx.bool_) if mask is None and return_array else mask
        # a sequence of which nothing is read is not settled either
        rows = tuple(n if new else held for n, held, (_, new) in zip(rows, self._held(), own, strict=True))
        if len(set(rows)) == 1 and set(own) == {(0, N)} and not return_array:
            return None if N == 1 else "causal"
        return _causal(rows, [skip for skip, _ in own], N)

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep these sequences alone, in this order."""
        self._catch_up()
        place = {int(old): new for new, old in enumerate(batch_indices)}
        parts = []
        for part in self.parts:
            stay = sorted((place[old], i) for i, old in enumerate(part.members) if old in place)
            if stay:
                layer = None if part.layer is None else joined.take(part.layer, [i for _, i in stay])
                parts.append(Part(tuple(new for new, _ in stay), layer))
        self.parts = parts
        self._skip = tuple(self._skip[int(i)] for i in batch_indices)
        if self._left is not None:
            self._left = tuple(self._left[int(i)] for i in batch_indices)

    def extend(self, other: "EvictingBatch") -> None:
        """Take the sequences of another batch in, behind those here."""
        if not _alike(self, other):
            raise ValueError(
                "caches of different methods or options cannot be read in one batch: make them alike"
            )
        self._catch_up()
        other._catch_up()
        first = len(self)
        parts = [
            part._replace(members=tuple(first + member for member in part.members)) for part in other.parts
        ]
        self.parts, self._skip = [*self.parts, *parts], (*self._skip, *other._skip)
        self._nan = _either(self._nan, other._nan)

    def extract(self, idx: int) -> Any:
        """The cache of one sequence, which goes on alone as it would have gone on here."""
        self._catch_up()
        part = next(part for part in self.parts if idx in part.members)
        layer = None if part.layer is None else joined.take(part.layer, [part.members.index(idx)])
        return self.single(layer, self._nan)

    def is_trimmable(self) -> bool:
        return False

    def trim(self, n: int) -> int:
        raise ValueError(f"cannot take back {n} tokens: a cache that evicts is not trimmable")

    @property
    def state(self) -> list[mx.array]:
        """Every array held: mlx-lm evaluates these after each chunk of a prompt."""
        arrays = [] if self._nan is None else [self._nan]
        for part in self.parts:
            if part.layer is not None:
                waiting = [] if part.layer.waiting is None else part.layer.waiting.queries
                arrays += [part.layer.rows.keys, part.layer.rows.values, *part.layer.carried, *waiting]
        return arrays

    def loose(self) -> list[mx.array]:
        """As of ``vqx.EvictingCache``."""
        held = [part.layer for part in self.parts if part.layer is not None]
        carried = [array for layer in held if layer.waiting is None for array in layer.carried]
        return [*carried, *([] if self._nan is None else [self._nan])]

    @property
    def nbytes(self) -> int:
        """Bytes of every array held, room for growth and bookkeeping included."""
        return sum(array.nbytes for array in self.state)

    def size(self) -> int:
        """Rows held of the longest sequence."""
        return max(self._held())

    def empty(self) -> bool:
        return all(part.layer is None for part in self.parts)

    def awaits(self, length: int, rows: int) -> bool:
        """Whether the queries of a forward of ``length`` tokens over so many rows are still to be shown."""
        return bool(self.unseen) and (self._length, self._width) == (length, rows)

    @property
    def position(self) -> mx.array:
        """As many as attention reads rows, ``[B, H, n]`` int32, for models that write attention out."""
        shape = (len(self), self._any().rows.keys.shape[1], self._width)
        return mx.zeros(shape, mx.int32)

    def check_pending(self) -> None:
        """Raise what the last forward left to be said."""
        check(self.number, self.unseen, self._nan, self._length)
        self._nan = None

    @property
    def _width(self) -> int:
        """Rows that attention reads."""
        return max(self._rows()) + (0 if self._together else self._length)

    @property
    def _together(self) -> bool:
        """Whether the last forward read what one layer holds, and nothing beside."""
        return len(self.parts) == 1 and self.parts[0].new == self._length

    def _ragged(self) -> bool:
        layer = self.parts[0].layer
        return not self._together or (layer is not None and layer.each is not None)

    def _mask(self) -> mx.array | None:
        rows = self._rows()
        if self._together:
            return joined.padding(rows)
        return _causal(rows, self._of_parts(lambda part: (part.skip,) * len(part.members)), self._length)

    def _rows(self) -> tuple[int, ...]:
        """Of each sequence the rows before the forward's own, or all where it decoded."""
        held = self._held()
        if self._together:
            return held
        new = self._of_parts(lambda part: (part.new,) * len(part.members))
        return tuple(n - own for n, own in zip(held, new, strict=True))

    def _held(self) -> tuple[int, ...]:
        return self._of_each(lambda layer: joined.each_of(layer).rows)

    def _waits(self, queries: mx.array, scale: float, sinks: mx.array | None) -> bool:
        """Whether the queries of sequences that are one layer could be left for later."""
        layer = self.parts[0].layer
        if not self._together or layer is None or layer.each is not None:
            return False
        if layer.waiting is not None and layer.waiting.sinks is not sinks:
            return False
        self.parts = [self.parts[0]._replace(layer=wait(self.plan, layer, queries, scale, sinks))]
        return True

    def _catch_up(self) -> None:
        """Leave nothing for later."""
        self.parts = [
            part if part.layer is None else part._replace(layer=caught_up(self.plan, part.layer))
            for part in self.parts
        ]

    def _own_tokens(self, length: int) -> tuple[tuple[int, int], ...]:
        """Of ``length`` tokens to come: for each sequence those to skip, and those after them to read."""
        skip = [min(skip, length) for skip in self._skip]
        left = (length,) * len(self) if self._left is None else self._left
        return tuple((a, min(max(b, 0), length - a)) for a, b in zip(skip, left, strict=True))

    def _decodes(self, own: Sequence[tuple[int, int]], length: int) -> bool:
        """Whether each sequence goes on by one token, so that all are one layer."""
        return length == 1 and set(own) == {(0, 1)} and all(part.layer is not None for part in self.parts)

    def _joined(self, keys: mx.array, values: mx.array) -> Part:
        """One token more for all, in one layer."""
        members = tuple(range(len(self)))
        if len(self.parts) > 1:
            self._catch_up()
        layers = [part.layer for part in self.parts if part.layer is not None]
        layer, read = layers[0], [False] * len(self)
        if len(layers) > 1:
            order = [member for part in self.parts for member in part.members]
            for part in self.parts:
                for member in part.members:
                    read[member] = part.layer is not None and part.layer.last > 1
            layer = joined.join(self.plan, [self._settled(layer) for layer in layers])
            layer = joined.take(layer, sorted(range(len(order)), key=order.__getitem__))
        elif layer.each is None and self.parts[0].members == members:
            return Part(members, admit(self.plan, layer, keys, values, layer.tokens_seen), 1)
        return Part(members, joined.step(self.plan, layer, keys, values, read), 1)

    def _settled(self, layer: Layer) -> Layer:
        """What a prompt left pending, done; what is pending of decoding is not."""
        if layer.last == 1:
            return layer
        return settle(self.plan, layer, room=max(2, self.plan.options.interval))[0]

    def _split(self, own: Sequence[tuple[int, int]]) -> Iterator[Part]:
        """Parts of sequences with the same history and as many tokens to read."""
        for part in self.parts:
            kinds: dict[Any, list[int]] = {}
            each = None if part.layer is None else joined.each_of(part.layer)
            for i, member in enumerate(part.members):
                history = None if each is None else tuple(numbers[i] for numbers in each)
                kinds.setdefault((history, own[member]), []).append(i)
            for (_, (skip, new)), those in kinds.items():
                layer = None if part.layer is None else joined.take(part.layer, those)
                yield Part(tuple(part.members[i] for i in those), layer, new, skip)

    def _read(self, part: Part, keys: mx.array, values: mx.array) -> Part:
        """A part with its own new tokens."""
        if not part.new:
            return part
        own = self._own(part, keys), self._own(part, values)
        start = 0 if part.layer is None else part.layer.tokens_seen
        return part._replace(layer=admit(self.plan, part.layer, *own, start))

    def _stand_in(self, part: Part, keys: mx.array) -> Part:
        """Keys in the place of the part's queries."""
        if part.layer is None or not part.new:
            return part
        layer, queries = stand_ins(self.plan, part.layer, self._own(part, keys))
        mask = joined.padding(joined.each_of(layer).rows) if layer.each is not None else "causal"
        watched = watch(self.plan, layer, queries[:, :, None], scale=keys.shape[-1] ** -0.5, mask=mask)
        return part._replace(layer=watched)

    def _own(self, part: Part, array: mx.array) -> mx.array:
        """Of ``[B, H, S, ...]`` what is the part's."""
        if part.new < array.shape[2]:
            array = array[:, :, part.skip : part.skip + part.new]
        return array if len(part.members) == len(self) else array[mx.array(part.members)]

    def _watched(self, part: Part, shown: "_Shown") -> Part:
        """A part that saw its own queries."""
        layer = part.layer
        if layer is None or not part.new:
            return part
        keys, mask = shown.keys, shown.mask
        if shown.logits and not self._together:
            kept = layer.size - part.new
            first = max(self._rows()) + part.skip
            own = mx.concatenate([mx.arange(kept), mx.arange(first, first + part.new)])
            keys = mx.take(keys[mx.array(part.members)], own, axis=2)
            if isinstance(mask, mx.array):
                mask = mask[mx.array(part.members)] if mask.ndim == 4 and mask.shape[0] > 1 else mask
                mask = mx.take(mask[..., part.skip : part.skip + part.new, :], own, axis=-1)
        queries = self._own(part, shown.queries)
        batch, _, length, width = queries.shape
        watched = watch(
            self.plan,
            layer,
            queries.reshape(batch, layer.rows.keys.shape[1], -1, length, width),
            scale=shown.scale,
            mask=mask,
            sinks=shown.sinks,
            keys=keys if shown.logits or self._together else None,
            logits=shown.logits,
        )
        return part._replace(layer=watched)

    def _filled(self, part: Part) -> tuple[mx.array, mx.array]:
        if part.layer is not None:
            return dense(self.plan, part.layer)
        keys, values = (
            mx.zeros((len(part.members), one.shape[1], 0, one.shape[3]), one.dtype)
            for one in dense(self.plan, self._any())
        )
        return keys, values

    def _any(self) -> Layer:
        found = [part.layer for part in self.parts if part.layer is not None]
        if not found:
            raise ValueError("the caches are empty: nothing was stored yet")
        return found[0]

    def _of_each(self, of: Callable[[Layer], tuple[int, ...]]) -> tuple[int, ...]:
        return self._of_parts(lambda part: (0,) * len(part.members) if part.layer is None else of(part.layer))

    def _of_parts(self, of: Callable[[Part], tuple[int, ...]]) -> tuple[int, ...]:
        """A number of each sequence, in the batch's order."""
        found: dict[int, int] = {}
        for part in self.parts:
            found.update(zip(part.members, of(part), strict=True))
        return tuple(found[member] for member in range(len(found)))


class _Shown(NamedTuple):
    """What attention was handed."""

    queries: mx.array
    keys: mx.array
    mask: Any
    sinks: mx.array | None
    scale: float
    logits: bool


def unfit(plan: Plan, allotment: Allotment | None) -> str:
    """Why caches of this plan read one sequence each; empty where they can be batched."""
    if plan.method.floor is not None:
        return "heads share a budget, and each sequence shares it out in its own way"
    if allotment is not None or plan.method.share is not None:
        return "layers share their rows, by what they read of one text"
    if plan.compact:
        return "compact positions turn the rows of each sequence by its own number of rows"
    return ""


def _alike(one: Any, other: Any) -> bool:
    """Whether two caches evict alike: made by one call or by equal ones."""
    if one.plan.method.scorer is other.plan.method.scorer or one.recipe is other.recipe is not None:
        return True
    return one.recipe is not None and other.recipe is not None and one.recipe().words == other.recipe().words


def _causal(rows: Sequence[int], skip: Sequence[int], length: int) -> mx.array:
    """Filled rows, and own tokens up to each query's: ``[B, 1, S, max rows + S]`` booleans.

    Padding sees itself at least: a query that sees nothing at all would be NaN.
    """
    kept = mx.arange(max(rows)) < mx.array([*rows])[:, None]
    key, query = mx.arange(length)[None], mx.arange(length)[:, None]
    new = (key <= query) & ((key >= mx.array([*skip])[:, None, None]) | (key == query))
    seen = mx.broadcast_to(kept[:, None], (len(rows), length, max(rows)))
    return mx.concatenate([seen, new], axis=-1)[:, None]


def _padded(array: mx.array, before: int, behind: int) -> mx.array:
    return mx.pad(array, [(0, 0), (0, 0), (before, behind), (0, 0)]) if before or behind else array


def _either(one: mx.array | None, other: mx.array | None) -> mx.array | None:
    return one if other is None else other if one is None else one | other
