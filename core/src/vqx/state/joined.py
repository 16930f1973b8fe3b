"""Layers of sequences with different histories in one: joined for decoding, taken apart, cut and added to.

A sequence fills its first rows, and what is behind them is padding up to the longest: no statistic, no score
and no query sees it, and the next token is written over it. So what a sequence keeps is what it keeps alone.
"""

from collections.abc import Iterable, Sequence

import mlx.core as mx
import numpy as np

from vqx.state.attention import HIDDEN
from vqx.state.layer import Each, Layer, Plan, Seen, columns_of, settle
from vqx.state.rows import Rows, filled, overwrite, reserve


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
    at, layer = mx.array([*members]), _first(layer, max(each.rows) * layer.heads)

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
    return taken if layer.each is None else _told(taken, each)


def join(plan: Plan, layers: Sequence[Layer]) -> Layer:
    """The sequences of all layers in one, once nothing is pending in those that read a prompt last.

    Raises:
        ValueError: notes of some of the layers alone, in which the method would find the others'.
    """
    each = Each(*(tuple(np.concatenate(numbers)) for numbers in zip(*map(each_of, layers), strict=True)))
    each = Each(*(tuple(int(number) for number in numbers) for numbers in each))
    n = max(each.rows)

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
    return _told(whole, each)


def step(
    plans: Sequence[Plan], layer: Layer, keys: mx.array, values: mx.array, read: Sequence[bool]
) -> Layer:
    """One token more for every sequence of a joined layer: what is due goes, then ``[B, H, 1, D]`` come.

    Args:
        plans: of each sequence; they differ in budgets alone.
        read: of which sequences the last forward read a prompt: nothing more of these is due.
    """
    plan, most = plans[0], max(plan.method.budget for plan in plans)
    keys = mx.depends([keys], layer.carried)[0]
    layer, slot = _settled(plans, layer, read)
    before = each_of(layer)
    each = Each(
        tuple(rows + 1 for rows in before.rows),
        tuple(seen + 1 for seen in before.tokens_seen),
        tuple(generated + 1 for generated in before.generated),
    )
    layer = _resized(layer, max(each.rows), most + plan.options.interval)
    rows = overwrite(layer.rows, slot, _arrived(plan, before, keys, values))
    seen = None if layer.seen is None else layer.seen.joined(1, slot)
    return _told(layer._replace(rows=rows, seen=seen, last=1), each)


def rows_after(plans: Sequence[Plan], layer: Layer) -> tuple[int, ...]:
    """Rows that each sequence holds once what is pending is settled, by its own plan."""
    if layer.each is None:
        return tuple(plan.rows_next(layer) for plan in plans)
    both = zip(plans, layer.each.rows, strict=True)
    return tuple(rows if rows < plan.full else plan.method.budget for plan, rows in both)


def padding(rows: Sequence[int]) -> mx.array | None:
    """Which rows are filled, ``[B, 1, 1, n]`` booleans; None where all are."""
    n = max(rows)
    if min(rows) == n:
        return None
    return (mx.arange(n) < mx.array([*rows])[:, None])[:, None, None]


def _settled(plans: Sequence[Plan], layer: Layer, read: Sequence[bool]) -> tuple[Layer, mx.array]:
    """What is due goes; the slot of each sequence's next row, ``[B, H, 1]``."""
    each, window = each_of(layer), plans[0].method.scorer.window
    single: dict[int, list[int]] = {}
    groups: dict[tuple[int, int, int], list[int]] = {}
    for i, (plan, rows, seen) in enumerate(zip(plans, each.rows, each.tokens_seen, strict=True)):
        budget, due = plan.method.budget, rows >= plan.full and not read[i]
        if due and rows == budget + 1 and seen >= window:
            single.setdefault(budget, []).append(i)
        elif due:
            groups.setdefault((budget, rows, min(seen, window)), []).append(i)
    for (_, _, queries), members in groups.items():
        part = _cut(plans[members[0]], take(layer, members), queries)
        layer = part if len(members) == len(each.rows) else _put(layer, members, part)
    each = each_of(layer)
    batch, heads, _ = layer.rows.position.shape
    slot = mx.broadcast_to(mx.array(each.rows, mx.uint32)[:, None, None], (batch, heads, 1))
    for budget, members in single.items():
        # all are looked at, which copies nothing, and of those that are not due nothing is taken
        before = _first(layer, budget + 1)
        after, chosen = settle(plans[members[0]], before, room=1)
        going = mx.array([i in members for i in range(batch)])[:, None, None]
        left = tuple(budget if i in members else rows for i, rows in enumerate(each_of(layer).rows))
        layer = layer._replace(
            rows=_changed(layer.rows, before.rows, after.rows, going), each=each._replace(rows=left)
        )
        # room for one row was asked for, so a slot is named
        slot = slot if chosen is None else mx.where(going, chosen, slot)
    return layer, slot


def _changed(rows: Rows, before: Rows, after: Rows, going: mx.array) -> Rows:
    """The rows, and in the sequences ``going`` what the first ones became from ``before`` to ``after``."""

    def written(held: mx.array, new: mx.array) -> mx.array:
        changed = mx.slice_update(held, new, mx.array([0]), axes=[2])
        return mx.where(going if held.ndim == 3 else going[..., None], changed, held)

    values = rows.values if after.values is before.values else written(rows.values, after.values)
    columns = {
        name: rows.columns[name] if column is before.columns[name] else written(rows.columns[name], column)
        for name, column in after.columns.items()
    }
    return rows._replace(values=values, columns=columns)


def _cut(plan: Plan, layer: Layer, queries: int) -> Layer:
    """Sequences that hold as many rows and remember as many queries, cut to the budget at once."""
    seen = layer.seen
    if seen is not None:
        seen = seen._replace(queries=seen.queries[..., -queries:, :])
    cut, _ = settle(plan, layer._replace(seen=seen), room=2)
    rows = (cut.size,) * len(each_of(layer).rows)
    return cut._replace(each=each_of(layer)._replace(rows=rows))


def _put(layer: Layer, members: Sequence[int], part: Layer) -> Layer:
    """These sequences as ``part`` has them, where they stood."""
    each, n, at = each_of(layer), part.size, mx.array([*members])

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
    after = tuple(n if i in members else rows for i, rows in enumerate(each.rows))
    return layer._replace(rows=rows, seen=seen, each=each._replace(rows=after))


def _first(layer: Layer, n: int) -> Layer:
    """The first n rows of every sequence, without room for more."""
    held = layer.rows
    if held.length == n == held.keys.shape[2]:
        return layer
    columns = {name: column[..., :n] for name, column in held.columns.items()}
    rows = Rows(held.keys[:, :, :n], held.values[:, :, :n], held.position[..., :n], columns)
    return layer._replace(rows=rows, seen=None if layer.seen is None else layer.seen.first(n))


def _arrived(plan: Plan, each: Each, keys: mx.array, values: mx.array) -> Rows:
    """The next row of every sequence."""
    start, held = np.array(each.tokens_seen), (keys, values)
    if plan.packing is not None:
        held = plan.packing.packed(keys, values)
        keys, values = plan.packing.unpacked(*held)
    position = mx.broadcast_to(mx.array(start, mx.int32)[:, None, None], keys.shape[:3])
    return Rows(*held, position, columns_of(plan, keys, values, start))


def _resized(layer: Layer, n: int, bound: int) -> Layer:
    """With columns for n rows, and room for their keys and values."""
    held = layer.rows.position.shape[2]
    if n < held:  # their keys and values stay where they are, to be written over in place
        first = _first(layer, n)
        rows = first.rows._replace(keys=layer.rows.keys, values=layer.rows.values)
        return first._replace(rows=rows)
    room = [(0, 0), (0, 0), (0, n - held)]
    rows = reserve(layer.rows, n, bound)
    rows = rows._replace(
        position=mx.pad(rows.position, room),
        columns={name: mx.pad(column, room) for name, column in rows.columns.items()},
    )
    seen = layer.seen
    return layer._replace(rows=rows, seen=None if seen is None else seen.joined(n - held, None))


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


def _told(layer: Layer, each: Each) -> Layer:
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
        seen = seen._replace(queries=seen.queries[..., -count:, :], origin=origin, known=None)
    return layer._replace(
        tokens_seen=tokens_seen, generated=generated, evicted=rows < tokens_seen, each=None, seen=seen
    )
