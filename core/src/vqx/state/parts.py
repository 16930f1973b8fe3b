"""The sequences of a batch while they differ: parts of one history each, side by side for attention alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from vqx.state import joined
from vqx.state.layer import Layer, Plan, attended


class Part(NamedTuple):
    """Sequences of a batch with one layer; those without a token have none."""

    members: tuple[int, ...]
    layer: Layer | None = None
    new: int = 0
    """Of the last forward's tokens, those that are its own."""
    skip: int = 0
    """Padding before them."""

    def own(self, array: mx.array) -> mx.array:
        """Of a batch's ``[B, H, S, ...]`` what is the part's."""
        if self.new < array.shape[2]:
            array = array[:, :, self.skip : self.skip + self.new]
        return array if self.members == (*range(array.shape[0]),) else array[mx.array(self.members)]


def split(parts: Sequence[Part], own: Sequence[tuple[int, int]]) -> Iterator[Part]:
    """Parts of sequences with one history and as many tokens to read.

    Args:
        own: for each sequence of the batch the tokens to skip, and those after them to read.
    """
    for part in parts:
        kinds: dict[Any, list[int]] = {}
        each = None if part.layer is None else joined.each_of(part.layer)
        for i, member in enumerate(part.members):
            history = None if each is None else tuple(numbers[i] for numbers in each)
            kinds.setdefault((history, own[member]), []).append(i)
        for (_, (skip, new)), those in kinds.items():
            layer = None if part.layer is None else joined.take(part.layer, those)
            yield Part(tuple(part.members[i] for i in those), layer, new, skip)


def of_each(parts: Sequence[Part], of: Callable[[Part], tuple[int, ...]]) -> tuple[int, ...]:
    """A number of each sequence, in the batch's order."""
    found: dict[int, int] = {}
    for part in parts:
        found.update(zip(part.members, of(part), strict=True))
    return tuple(found[member] for member in range(len(found)))


def side_by_side(plan: Plan, parts: Sequence[Part], length: int) -> tuple[mx.array, mx.array]:
    """Keys and values of all parts: the rows held before, padded to the longest, then ``length`` tokens."""
    some = next(part.layer for part in parts if part.layer is not None)
    none = [array[:1, :, :0] for array in attended(plan, some)]
    held = []
    for part in parts:
        batch = len(part.members)
        empty = [mx.broadcast_to(array, (batch, *array.shape[1:])) for array in none]
        held.append(empty if part.layer is None else [*attended(plan, part.layer)])
    kept = max(arrays[0].shape[2] - part.new for part, arrays in zip(parts, held, strict=True))
    both: list[list[mx.array]] = [[], []]
    for part, arrays in zip(parts, held, strict=True):
        for side, array in zip(both, arrays, strict=True):
            old = array.shape[2] - part.new
            before = _padded(array[:, :, :old], 0, kept - old)
            new = _padded(array[:, :, old:], part.skip, length - part.skip - part.new)
            side.append(mx.concatenate([before, new], axis=2))
    keys, values = (mx.concatenate(side, axis=0) for side in both)
    order = [member for part in parts for member in part.members]
    if order != sorted(order):
        back = mx.array(sorted(range(len(order)), key=order.__getitem__))
        keys, values = keys[back], values[back]
    return keys, values


def seen_by(part: Part, array: mx.array, kept: int) -> mx.array:
    """Of ``[..., n]`` over the rows side by side the part's own: ``kept`` is the longest's rows before."""
    if part.layer is None:
        return array
    first = kept + part.skip
    own = mx.concatenate([mx.arange(part.layer.size - part.new), mx.arange(first, first + part.new)])
    return mx.take(array, own, axis=-1)


def causal(rows: Sequence[int], skip: Sequence[int], length: int) -> mx.array:
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
