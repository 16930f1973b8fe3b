"""A cache whose latest tokens can be taken back: its method looks at a token once ``undo`` more came.

So the rows that a forward of a few tokens reads are known before it begins. Speculative decoding asks several
tokens at once, and each must see the rows that it would have seen alone: a mask hides those that its
predecessors evict. What a token changed that may be taken back is held (``vqx.state.journal``).
"""

import copy
from typing import Any, NoReturn, cast

import mlx.core as mx

from vqx.state.cache import EvictingCache
from vqx.state.journal import Before, Waiting, between
from vqx.state.layer import Layer, Plan
from vqx.state.rows import Gone, filled
from vqx.state.turn import Turn


class ReversibleCache:
    """A cache of which the last ``undo`` tokens can be trimmed, as if they had never been read.

    Args:
        policy: the cache that the method runs on, ``undo`` tokens late; empty, and shown to no model.
        undo: tokens that can be taken back, and one less than the most that are read as if one by one.
    """

    def __init__(self, policy: EvictingCache, undo: int) -> None:
        method = policy.plan.method
        if method.merge is not None or method.floor is not None or method.share is not None:
            raise ValueError(
                f"undo={undo}: a method that merges values, or shares rows among heads or layers, cannot take"
                " tokens back; use it without undo, or another"
            )
        self.policy, self.undo = policy, undo
        self.number = policy.number
        self.tokens_seen = 0
        self.unseen = ""
        self._waiting: Waiting | None = None
        self.turn: Turn | None = None  # as of vqx.EvictingCache
        self._looked = 0  # tokens that the method has looked at
        self._before: list[Before] = []  # what the layer was before each of the last of them
        self._last = 0  # tokens of the last forward
        self._block = False  # what comes next is looked at as one block
        self._whole = 0  # tokens up to the last forward that was read as a whole
        self._rest: tuple[float, mx.array | None] = (1.0, None)  # attention's scale and learned sinks

    @property
    def plan(self) -> Plan:
        """What stays the same for the layer's whole life."""
        return self.policy.plan

    @property
    def offset(self) -> int:
        """The position at which the model rotates the next query and key."""
        return self.tokens_seen

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As of ``vqx.EvictingCache``: kept rows, those that wait, and new rows, in this order."""
        if self.unseen:
            raise ValueError(
                f"layer {self.number}: the model's queries were not seen, since it {self.unseen}; undo needs"
                " them: make the cache without it"
            )
        if self.turn is not None:
            self.turn.read(self, {**vars(self), "policy": self.policy.now()})
        start, length = self.tokens_seen, keys.shape[2]
        if self._waiting is None:
            self._waiting = Waiting(0, keys[:, :, :0], values[:, :, :0])
        self._look(self._due(start))
        self._block = length > self.undo + 1
        for at in range(start + 1, start if self._block else start + length):
            self._look(self._due(at))
        self._forget(min(self._due(start), self._due(start + length) - self.undo))
        if self._waiting.queries is not None:  # no graph grows over tokens
            keys = mx.depends([keys], [self._waiting.queries])[0]
        self._waiting = self._waiting.joined(keys, values)
        self.tokens_seen, self._last = start + length, length
        if self._block:
            self._whole = self.tokens_seen
        self.unseen = "computes attention by itself"
        if self.turn is not None:
            self.turn.done()
        return self.keys_and_values()

    def __deepcopy__(self, memo: dict[int, Any]) -> "ReversibleCache":
        turn = copy.deepcopy(self.turn, memo)
        # arrays and layers are values, which no one changes
        other = copy.copy(self)
        other.policy, other.turn = copy.deepcopy(self.policy, memo), turn
        if other.turn is not None:
            other.turn.join(other)
        return other

    def go_back(self, before: dict[str, Any]) -> None:
        """As of ``vqx.EvictingCache``."""
        self.policy.go_back(before["policy"])
        vars(self).update({**before, "policy": self.policy})

    def observe(
        self, queries: mx.array, keys: mx.array, scale: float, mask: Any, sinks: mx.array | None
    ) -> None:
        """See the queries of the forward under way (called by the attention hook)."""
        if not self.unseen or self._waiting is None:
            return
        held = self._waiting.keys
        if isinstance(mask, mx.array) or (keys.shape[1], keys.shape[3]) != (held.shape[1], held.shape[3]):
            self.unseen = "masks its rows by itself, or makes them from those held"
            return
        self.unseen, self._rest = "", (scale, sinks)
        if self.policy.plan.method.scorer.reads_queries and self.policy.plan.options.queries == "model":
            before = self._waiting.queries
            queries = queries if before is None else mx.concatenate([before, queries], axis=2)
            self._waiting = self._waiting._replace(queries=queries)

    def masks(self, mask: Any, query_heads: int, length: int) -> list[tuple[int, int, Any]]:
        """The mask that attention has to use: the host's, or what each of few tokens would see alone."""
        start = self.tokens_seen - length
        if length == 1 or length > self.undo + 1 or self._due(start + length - 1) == self._due(start):
            return [(0, length, mask)]
        position, seen = self.position, []
        batch, heads, _ = position.shape
        for at in range(start, start + length):
            due = self._due(at)
            visible = (position >= due) & (position <= at)
            layer = self._known(due)
            if layer is not None:
                table = mx.zeros((batch, heads, start + length), mx.bool_)
                table = mx.put_along_axis(table, layer.rows.position, mx.array(True), axis=2)
                visible = visible | mx.take_along_axis(table, position, axis=2)
            seen.append(visible)
        return [(0, length, mx.repeat(mx.stack(seen, axis=2), query_heads // heads, axis=1))]

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The rows held, as attention reads them: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        gone, waiting = self._read()
        layer = self.policy.layer
        if layer is None:
            return waiting.keys, waiting.values
        keys, values = filled(layer.rows)
        return (
            mx.concatenate([keys, *(rows.keys for rows in gone), waiting.keys], axis=2),
            mx.concatenate([values, *(rows.values for rows in gone), waiting.values], axis=2),
        )

    @property
    def position(self) -> mx.array:
        """The positions of the rows held, ``[B, H, n]`` int32, in the order in which they are stored."""
        gone, waiting = self._read()
        layer = self.policy.layer
        batch, heads, count, _ = waiting.keys.shape
        late = mx.arange(waiting.first, waiting.first + count, dtype=mx.int32)
        late = mx.broadcast_to(late, (batch, heads, count))
        if layer is None:
            return late
        return mx.concatenate([layer.rows.position, *(rows.position for rows in gone), late], axis=2)

    @property
    def keys(self) -> mx.array | None:
        """As of ``vqx.EvictingCache``."""
        return None if self._waiting is None else self._waiting.keys

    @keys.setter
    def keys(self, keys: mx.array) -> None:
        if self._waiting is not None:
            self._waiting = self._waiting._replace(keys=keys)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """The mask of N new tokens; several are masked anew where they would see different rows."""
        if self.turn is not None:
            self.turn.begin(self)
        return self.policy.make_mask(N, return_array, window_size)

    @property
    def merge(self) -> NoReturn:
        """There is none: in mlx-lm's batches nobody takes a token back.

        Raises:
            AttributeError: always, so that mlx-lm's server reads one sequence at a time.
        """
        raise AttributeError(
            f"layer {self.number}: no batches, since undo={self.undo} is for drafts, which mlx-lm writes for"
            " one sequence at a time: leave undo out"
        )

    def is_trimmable(self) -> bool:
        """Up to ``undo`` tokens can be taken back; ``trim`` refuses more."""
        return True

    def trim(self, n: int) -> int:
        """Take the last n tokens back, as if they had never been read; the number of them.

        Raises:
            ValueError: more than can be taken back, or tokens of a forward of more than ``undo + 1``, which
                saw rows that they would not have seen one by one.
        """
        least = self._looked - len(self._before)
        most = self.tokens_seen - max(self._whole, least + self.undo if least else 0)
        if n > most:
            raise ValueError(
                f"cannot take back {n} tokens: with undo={self.undo}, {max(most, 0)} can be taken back now,"
                f" and none of a forward of more than {self.undo + 1}; give undo the number of tokens drafted"
                " at least, or start from a fresh cache"
            )
        if n <= 0 or self._waiting is None:
            return 0
        self.tokens_seen -= n
        self._waiting = self._waiting.cut(self._waiting.first, self.tokens_seen).copied()
        self._last = max(self._last - n, 0)
        while self._looked > self._due(self.tokens_seen):
            *self._before, before = self._before
            self.policy.layer, self._looked = before.behind(self.policy.layer), self._looked - 1
        return n

    @property
    def state(self) -> list[mx.array]:
        """Every array held: mlx-lm evaluates these after each chunk of a prompt."""
        held = [] if self._waiting is None else [array for array in self._waiting[1:] if array is not None]
        held += self.policy.arrays
        for layer, gone, _ in self._before:
            held += [] if layer is None else layer.carried
            held += [] if gone is None else gone
        return held

    def loose(self) -> list[mx.array]:
        """As of ``vqx.EvictingCache``."""
        return self.state

    @property
    def nbytes(self) -> int:
        """Bytes of every array held, those of rows that may come back among them."""
        return sum(array.nbytes for array in {id(array): array for array in self.state}.values())

    @property
    def kept_bytes(self) -> int:
        """As of ``vqx.EvictingCache``."""
        if self._waiting is None:
            return 0
        each = (self._waiting.keys, self._waiting.values)
        batch, heads = self._waiting.keys.shape[:2]
        return self.tokens_kept * batch * heads * sum(array.shape[3] * array.dtype.size for array in each)

    def size(self) -> int:
        """Rows held now."""
        return 0 if self._waiting is None else int(self.position.shape[2])

    def empty(self) -> bool:
        return self.tokens_seen == 0

    @property
    def tokens_kept(self) -> int:
        """Rows that remain for the next forward, those that wait among them."""
        plan, due, layer = self.policy.plan, self._due(self.tokens_seen), self.policy.layer
        missing = due - self._looked
        rows, left = (0, 0) if layer is None else (layer.size, plan.rows_next(layer))
        for added in [missing] if self._block else [1] * missing:
            rows = left + added
            left = rows if rows - plan.method.budget < plan.options.interval else plan.method.budget
        return rows + self.tokens_seen - due

    def _due(self, seen: int) -> int:
        """How many tokens the method has looked at when ``seen`` were read."""
        return max(0, seen - self.undo)

    def _look(self, count: int) -> None:
        """Let the method look at tokens until it has seen ``count`` of them."""
        if count == self._looked or self._waiting is None:
            return
        for end in [count] if self._block else range(self._looked + 1, count + 1):
            before, waiting = self.policy.layer, self._waiting.cut(self._looked, end).copied()
            mask = self.policy.make_mask(end - self._looked)
            keys, _ = self.policy.update_and_fetch(waiting.keys, waiting.values)
            if waiting.queries is not None:
                scale, sinks = self._rest
                self.policy.observe(waiting.queries, keys, scale, mask, sinks)
            layer = cast(Layer, self.policy.layer)
            self._before = [*self._before, between(before, layer)]
            self.policy.layer, self._looked = layer._replace(gone=None), end
        if self._block:  # as a block it was looked at, so there is no way back into it
            self._before, self._block = [], False

    def _forget(self, count: int) -> None:
        """Drop what no token that may be taken back needs."""
        first = max(count, self._looked - len(self._before))
        self._before = self._before[len(self._before) - (self._looked - first) :]
        if self._waiting is not None:
            self._waiting = self._waiting.cut(first, self.tokens_seen)

    def _known(self, count: int) -> Layer | None:
        """The layer when the method had looked at ``count`` tokens, without keys and values."""
        return self.policy.layer if count == self._looked else self._before[count - self._looked].layer

    def _read(self) -> tuple[list[Gone], Waiting]:
        """What the last forward read beside the rows held now: those that went since, and later tokens."""
        if self._waiting is None:
            raise ValueError("the cache is empty: nothing was stored yet")
        first = min(self._due(self.tokens_seen - self._last), self._looked)
        since = self._before[len(self._before) - (self._looked - first) :]
        gone = [before.gone for before in since if before.gone is not None]
        return gone, self._waiting.cut(self._looked, self.tokens_seen)
