"""Sequences of a stream that join and leave a batch, beside the same sequences read alone."""

from collections.abc import Iterator, Sequence

import mlx.core as mx

from vqx.state.batch import EvictingBatch
from vqx.state.cache import EvictingCache
from vqx.testing.driving import feed
from vqx.testing.streams import Stream

SCHEDULE: Sequence[tuple[str, tuple[int, ...]]] = (
    ("join", (13, 4, 0)),  # a new sequence each, with so many tokens read
    ("read", (2, 9, 11)),  # a prompt: so many tokens of each, padded behind
    ("decode", (5,)),
    ("join", (21,)),
    ("decode", (7,)),
    ("leave", (1,)),  # the place of the one that goes on alone
    ("decode", (6,)),
    ("join", (1, 0)),
    ("read", (0, 1, 3, 18, 6)),
    ("read", (1, 1, 2, 0, 1)),  # tokens one by one that are not all sequences'
    ("read", (1, 1, 0, 2, 1)),
    ("decode", (9,)),
    ("leave", (0,)),
    ("decode", (3,)),
)


class Batched:
    """A batch, and what it holds read alone: sequence b of the stream is token after token the b-th to join.

    Args:
        empty: a cache that read nothing; of it all others are made.
        tokens: ``[B, ...]``, one stream for each sequence that joins.
    """

    def __init__(self, empty: EvictingCache, tokens: Stream) -> None:
        self.empty, self.tokens = empty, tokens
        self.batch: EvictingBatch | None = None
        self.members: list[int] = []
        self.seen: list[int] = []  # tokens read of each sequence of the stream
        self.alone: list[EvictingCache] = []

    def run(self) -> Iterator[tuple[EvictingCache, EvictingCache]]:
        """Follow the schedule; whenever one leaves, and at the end, every sequence in the batch and alone."""
        for what, numbers in SCHEDULE:
            if what == "join":
                self._join(numbers)
            elif what == "read":
                self._forward(numbers)
            elif what == "decode":
                for _ in range(numbers[0]):
                    self._forward([1] * len(self.members))
            else:
                yield from self._pairs()
                yield self._leave(numbers[0])
        yield from self._pairs()

    def _join(self, lengths: Sequence[int]) -> None:
        first = len(self.seen)
        for member, length in enumerate(lengths, first):
            self.seen.append(length)
            self.alone.append(feed(self.empty.another(None), self._of(member), [length] if length else []))
        joining = [
            feed(self.empty.another(None), self._of(m), [n] if n else [])
            for m, n in enumerate(lengths, first)
        ]
        batch = joining[0].merge(joining)
        self.members += range(first, len(self.seen))
        if self.batch is None:
            self.batch = batch
        else:
            self.batch.extend(batch)

    def _leave(self, place: int) -> tuple[EvictingCache, EvictingCache]:
        """One goes on alone for some tokens, which must not show in the batch."""
        member, batch = self.members.pop(place), self._batch()
        left = batch.extract(place)
        batch.filter([i for i in range(len(batch)) if i != place])
        for cache in (left, self.alone[member]):
            feed(cache, self._of(member), [3, 1, 1], self.seen[member])
        return left, self.alone[member]

    def _forward(self, lengths: Sequence[int]) -> None:
        batch, longest = self._batch(), max(lengths)
        if min(lengths) < longest:
            batch.prepare(lengths=lengths, right_padding=[longest - length for length in lengths])
        padded = [
            self._padded(member, length, longest)
            for member, length in zip(self.members, lengths, strict=True)
        ]
        queries, keys, values = (mx.concatenate([*arrays]) for arrays in zip(*padded, strict=True))
        mask = batch.make_mask(longest)
        read, _ = batch.update_and_fetch(keys, values)
        if batch.plan.options.queries == "model":
            batch.observe(queries, read, keys.shape[-1] ** -0.5, mask, None)
        batch.finalize()
        self._poison()
        for member, length in zip(self.members, lengths, strict=True):
            feed(self.alone[member], self._of(member), [length] if length else [], self.seen[member])
            self.seen[member] += length

    def _padded(self, member: int, length: int, longest: int) -> Stream:
        """The next tokens of a sequence, and NaN behind them."""
        room = [(0, 0), (0, 0), (0, longest - length), (0, 0)]
        own = self._of(member).cut(self.seen[member], self.seen[member] + length)
        return Stream(*(mx.pad(array, room, constant_values=mx.nan) for array in own))

    def _poison(self) -> None:
        """NaN wherever no row is: what sees padding shows it."""
        batch = self._batch()
        for place, part in enumerate(batch.parts):
            if part.layer is None or part.layer.each is None:
                continue
            rows = part.layer.rows
            filled = mx.array(part.layer.each.rows)[:, None, None] * part.layer.heads
            nowhere = mx.arange(rows.keys.shape[2]) >= filled
            held = nowhere[..., : rows.position.shape[2]]
            poisoned = rows._replace(
                keys=mx.where(nowhere[..., None], mx.nan, rows.keys),
                values=mx.where(nowhere[..., None], mx.nan, rows.values),
                columns={
                    name: mx.where(held, mx.nan, column) if column.dtype == mx.float32 else column
                    for name, column in rows.columns.items()
                },
            )
            batch._parts[place] = part._replace(layer=part.layer._replace(rows=poisoned))

    def _pairs(self) -> Iterator[tuple[EvictingCache, EvictingCache]]:
        batch = self._batch()
        for place, member in enumerate(self.members):
            if self.seen[member]:
                yield batch.extract(place), self.alone[member]

    def _of(self, member: int) -> Stream:
        return self.tokens.lanes(batch=slice(member, member + 1))

    def _batch(self) -> EvictingBatch:
        if self.batch is None:
            raise ValueError("nobody joined yet")
        return self.batch
