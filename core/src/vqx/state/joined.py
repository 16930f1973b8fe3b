"""Layers of sequences with different histories in one: joined for decoding, taken apart, cut and added to.

A sequence fills its first rows, and what is behind them is padding up to the longest: no statistic, no score
and no query sees it, and the next token is written over it. So what a sequence keeps is what it keeps alone.
"""

import functools
from collections.abc import Iterable, Sequence

import mlx.core as mx
import numpy as np

from vqx.state import lanes
from vqx.state.attention import HIDDEN
from vqx.state.layer import Each, Layer, Plan, Seen
from vqx.state.rows import Rows, filled


def each_of(layer: Layer) -> Each:
    """What there is to say of each sequence, whether they differ or not."""
    if layer.each is not None:
        return layer.each
    batch = layer.rows.keys.shape[0]
    return Each((layer.size,) * batch, (layer.tokens_seen,) * batch, (layer.generated,) * batch)


def take(layer: Layer, members: Sequence[int]) -> Layer:
    """These sequences of a layer alone, in this order, in arrays of their own."""
    batch = layer.rows.position.shape[0]
    if [*members] == [*range(batch)]:
        return layer
    each = Each(*(tuple(numbers[i] for i in members) for numbers in each_of(layer)))
    at, layer = mx.array([*members]), first(layer, max(each.rows) * layer.heads)

    def picked(array: mx.array) -> mx.array:
        return mx.take(array, at, axis=0)

    held, seen = layer.rows, layer.seen
    taken = layer._replace(
        rows=Rows(
            picked(held.keys),
            picked(held.values),
            picked(held.position),
            {name: picked(column) for name, column in held.columns.items()},
        ),
        seen=None if seen is None else seen.taken(members),
        key_sum=None if layer.key_sum is None else picked(layer.key_sum),
        notes={name: picked(note) for name, note in layer.notes.items()},
    )
    return taken if layer.each is None else told(taken, each)


def join(plan: Plan, layers: Sequence[Layer]) -> Layer:
    """The sequences of all layers in one, once nothing is pending in those that read a prompt last.

    Raises:
        ValueError: notes of some of the layers alone, in which the method would find the others'.
    """
    each = Each(*(tuple(np.concatenate(numbers)) for numbers in zip(*map(each_of, layers), strict=True)))
    each = Each(*(tuple(int(number) for number in numbers) for numbers in each))
    if any(layer.heads > 1 for layer in layers):
        layers = [laned(layer) for layer in layers]
    n = max(each.rows) * layers[0].heads

    def side_by_side(arrays: Iterable[mx.array], axis: int, value: float = 0) -> mx.array:
        padded = []
        for array in arrays:
            room = [(0, 0)] * array.ndim
            room[axis] = (0, n - array.shape[axis])
            padded.append(mx.pad(array, room, constant_values=value) if room[axis][1] else array)
        return mx.concatenate(padded, axis=0)

    held = [filled(layer.rows) for layer in layers]
    rows = Rows(
        side_by_side((keys for keys, _ in held), 2),
        side_by_side((values for _, values in held), 2),
        side_by_side((layer.rows.position for layer in layers), 2),
        {
            name: side_by_side((layer.rows.columns[name] for layer in layers), 2)
            for name in layers[0].rows.columns
        },
    )
    sums = [layer.key_sum for layer in layers if layer.key_sum is not None]
    whole = layers[0]._replace(
        rows=rows,
        seen=_seen(plan, layers, n),
        key_sum=mx.concatenate(sums, axis=0) if sums else None,
        notes=_notes(plan, layers),
        last=1,
    )
    return told(whole, each)


def laned(layer: Layer) -> Layer:
    """The layer with the rows of all heads of a sequence in one lane, those that it fills first."""
    heads = layer.rows.position.shape[1]
    if layer.heads > 1 or heads == 1:
        return layer
    return layer._replace(rows=lanes.filled_lane(layer.rows, each_of(layer).rows), heads=heads)


@functools.lru_cache(maxsize=2)
def padding(rows: tuple[int, ...]) -> mx.array | None:
    """Which rows are filled, ``[B, 1, 1, n]`` booleans; None where all are. Made once for all layers."""
    n = max(rows)
    if min(rows) == n:
        return None
    return mx.array((np.arange(n) < np.array(rows)[:, None])[:, None, None])


@functools.lru_cache(maxsize=8)
def padding_later(rows: tuple[int, ...], count: int) -> mx.array | None:
    """The same after so many tokens more."""
    return padding(tuple(n + count for n in rows))


def put_back(layer: Layer, members: Sequence[int], part: Layer) -> Layer:
    """These sequences as ``part`` has them, where they stood."""
    each, n, at = each_of(layer), part.rows.length, mx.array([*members])

    def put(array: mx.array, new: mx.array) -> mx.array:
        array = array[:]
        array[at, :, :n] = new
        return array

    held, kept = layer.rows, filled(part.rows)
    rows = Rows(
        put(held.keys, kept[0]),
        put(held.values, kept[1]),
        put(held.position, part.rows.position),
        {name: put(column, part.rows.columns[name]) for name, column in held.columns.items()},
    )
    seen = layer.seen
    if seen is not None and seen.logits and part.seen is not None:
        logits = seen.queries[:]
        logits[at, :, :, -part.seen.queries.shape[3] :, :n] = part.seen.queries
        seen = seen._replace(queries=logits)
    after = tuple(part.size if i in members else rows for i, rows in enumerate(each.rows))
    return layer._replace(rows=rows, seen=seen, each=each._replace(rows=after))


def first(layer: Layer, n: int) -> Layer:
    """The first n rows of every sequence, or of its lane, without room for more."""
    held = layer.rows
    if held.length == n == held.keys.shape[2]:
        return layer
    columns = {name: column[..., :n] for name, column in held.columns.items()}
    rows = Rows(held.keys[:, :, :n], held.values[:, :, :n], held.position[..., :n], columns)
    return layer._replace(rows=rows, seen=None if layer.seen is None else layer.seen.first(n))


def _seen(plan: Plan, layers: Sequence[Layer], n: int) -> Seen | None:
    """The latest queries of all, the last behind; a sequence that has fewer begins with some of nothing."""
    window = plan.method.scorer.window
    found = [layer.seen for layer in layers if layer.seen is not None]
    if not window or len(found) < len(layers):
        return None
    if len({seen.logits for seen in found}) > 1:
        raise ValueError(
            "the model adds numbers to its logits in some forwards only, so its sequences cannot be read in"
            " one batch; use queries='centred-keys'"
        )
    longest = max(min(seen.queries.shape[3], window) for seen in found)
    queries, origin = [], []
    for seen in found:
        latest = seen.queries[..., -window:, :]
        wide = n - latest.shape[4] if seen.logits else 0
        room = [(0, 0)] * 3 + [(longest - latest.shape[3], 0), (0, wide)]
        queries.append(mx.pad(latest, room, constant_values=HIDDEN if seen.logits else 0))
        if seen.origin is not None:
            places = np.broadcast_to(seen.origin[:, -window:], (latest.shape[0], latest.shape[3]))
            origin.append(np.pad(places, [(0, 0), room[3]]))
    return found[0]._replace(
        queries=mx.concatenate(queries, axis=0),
        origin=np.concatenate(origin) if origin else None,
        known=None,
    )


def _notes(plan: Plan, layers: Sequence[Layer]) -> dict[str, mx.array]:
    """The notes of all; a sequence that has none yet begins with zeros."""
    found = {name: note for layer in layers for name, note in layer.notes.items()}
    if plan.method.scorer.note is None and any(set(layer.notes) != set(found) for layer in layers):
        raise ValueError(
            f"some sequences of the batch were prepared and others not ({', '.join(found)}): read them apart"
        )

    def of(layer: Layer, name: str, like: mx.array) -> mx.array:
        none = mx.zeros((layer.rows.position.shape[0], *like.shape[1:]), like.dtype)
        return layer.notes.get(name, none)

    return {
        name: mx.concatenate([of(layer, name, like) for layer in layers], axis=0)
        for name, like in found.items()
    }


def told(layer: Layer, each: Each) -> Layer:
    """The layer with what its sequences differ in; nothing, where they are alike after all."""
    if any(len(set(numbers)) > 1 for numbers in each):
        return layer._replace(
            tokens_seen=max(each.tokens_seen), generated=max(each.generated), evicted=True, each=each
        )
    (rows, *_), (tokens_seen, *_), (generated, *_) = each
    seen = layer.seen
    if seen is not None:
        count = min(seen.queries.shape[3], tokens_seen)
        origin = None if seen.origin is None else seen.origin[:, -count:]
        seen = seen._replace(queries=seen.queries[..., -count:, :], origin=origin)
    held, heads = layer.rows, layer.heads
    if heads > 1 and rows == tokens_seen:  # nothing went yet: no head has to see the others' rows
        held, heads = lanes.apart(first(layer, rows * heads).rows, heads), 1
    return layer._replace(
        rows=held,
        heads=heads,
        tokens_seen=tokens_seen,
        generated=generated,
        evicted=rows < tokens_seen,
        each=None,
        seen=seen,
    )
