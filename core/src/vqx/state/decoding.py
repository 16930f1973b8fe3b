"""One token more for all sequences of a joined layer (``vqx.state.joined``): what is due goes, then it comes.

A sequence's own plan says what is due; plans differ in budgets alone.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from vqx.state import lanes
from vqx.state.arrival import caught_up, columns_of
from vqx.state.joined import each_of, first, laned, put_back, take, told
from vqx.state.layer import WAITING, Each, Layer, Plan, slots_later, stacked
from vqx.state.rows import Rows, append_bare, behind, move_behind, overwrite, reserve
from vqx.state.settling import freed, in_place, settle


def step(
    plans: Sequence[Plan], layer: Layer, keys: mx.array, values: mx.array, read: Sequence[bool]
) -> Layer:
    """One token more for every sequence of a joined layer: what is due goes, then ``[B, H, 1, D]`` come.

    Args:
        plans: of each sequence; they differ in budgets alone.
        read: of which sequences the last forward read a prompt: nothing more of these is due.
    """
    plan, most = plans[0], max(plan.method.budget for plan in plans)
    if not any(read) and spare(plans, layer):
        return _bare(plan, layer, keys, values)
    layer = caught_up(plan, layer)
    keys = mx.depends([keys], layer.carried)[0]
    layer, slot = _settled(plans, layer, read)
    before = each_of(layer)
    each = before.longer()
    layer = _resized(layer, max(each.rows) * layer.heads, (most + plan.options.interval) * layer.heads)
    new = _arrived(plan, before, keys, values)
    rows = overwrite(layer.rows, slot, new if layer.heads == 1 else lanes.one_lane(new))
    seen = None if layer.seen is None else layer.seen.joined(1, slot)
    return told(layer._replace(rows=rows, seen=seen, last=1), each)


def rows_after(plans: Sequence[Plan], layer: Layer) -> tuple[int, ...]:
    """Rows that each sequence holds once what is pending is settled, by its own plan."""
    if layer.each is None:
        return tuple(plan.rows_next(layer) for plan in plans)
    return left(plans, layer.each.rows)


def left(plans: Sequence[Plan], rows: Sequence[int]) -> tuple[int, ...]:
    """The same of sequences that differ, which hold so many ``rows`` now."""
    both = zip(plans, rows, strict=True)
    return tuple(n if n < plan.full else plan.method.budget for plan, n in both)


def any_due(plans: Sequence[Plan], layer: Layer) -> bool:
    """Whether rows of some sequence go before its next one comes."""
    return any(rows >= plan.full for plan, rows in zip(plans, each_of(layer).rows, strict=True))


def spare(plans: Sequence[Plan], layer: Layer) -> int:
    """Tokens of every sequence that need nothing but room, as many as may wait: all else is for later."""
    plan, rows, each = plans[0], layer.rows, each_of(layer)
    if not plan.defers_apart or layer.heads > 1 or (layer.seen and layer.seen.logits):
        return 0
    room = rows.keys.shape[2] - max(each.rows), max(plan.options.interval, WAITING) - rows.bare
    return max(min(*room, *[plan.full - n for plan, n in zip(plans, each.rows, strict=True)]), 0)


def _bare(plan: Plan, layer: Layer, keys: mx.array, values: mx.array) -> Layer:
    """The layer with one token more of each sequence, ``[B, H, 1, D]``, as of ``append_bare``."""
    rows, each = layer.rows, each_of(layer)
    if plan.packing is not None:
        keys, values = plan.packing.packed(keys, values)
    if each.even:
        rows = append_bare(rows, keys, values)
    else:
        slot = slots_later(each.rows, 0, keys.shape[1])
        rows = rows._replace(
            keys=mx.put_along_axis(rows.keys, slot, keys, axis=2),
            values=mx.put_along_axis(rows.values, slot, values, axis=2),
            bare=rows.bare + 1,
        )
    seen, generated = layer.tokens_seen + 1, layer.generated + 1
    return layer._replace(rows=rows, tokens_seen=seen, generated=generated, last=1, each=each.longer())


def _settled(plans: Sequence[Plan], layer: Layer, read: Sequence[bool]) -> tuple[Layer, mx.array]:
    """What is due goes; the slots of each sequence's next rows, ``[B, H, 1]`` or a lane's ``[B, 1, H]``."""
    each, window = each_of(layer), plans[0].method.scorer.window
    single: dict[int, list[int]] = {}
    groups: dict[tuple[int, int, int], list[int]] = {}
    for i, (plan, rows, seen) in enumerate(zip(plans, each.rows, each.tokens_seen, strict=True)):
        budget, due = plan.method.budget, rows >= plan.full and not read[i]
        if due and rows == budget + 1 and seen >= window:
            single.setdefault(budget, []).append(i)
        elif due:
            groups.setdefault((budget, rows, min(seen, window)), []).append(i)
    if plans[0].method.floor is not None and (single or groups):
        layer = laned(layer)
    for (_, _, queries), members in groups.items():
        layer = _cut(plans[members[0]], layer, members, queries)
    each = each_of(layer)
    batch, lane, _ = layer.rows.position.shape
    slot = stacked(tuple(rows * layer.heads for rows in each.rows)).astype(mx.uint32)
    slot = mx.broadcast_to(slot + mx.arange(layer.heads, dtype=mx.uint32), (batch, lane, layer.heads))
    for budget, members in single.items():
        # all are looked at, which copies nothing, and of those that are not due nothing is taken
        before = first(layer, (budget + 1) * layer.heads)
        after, chosen = settle(plans[members[0]], before, room=1)
        if len(members) == batch and chosen is not None:
            whole = each._replace(rows=(budget,) * batch)
            return layer._replace(rows=after.rows, each=whole), chosen
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


def _cut(plan: Plan, layer: Layer, members: Sequence[int], queries: int) -> Layer:
    """Sequences that hold as many rows and remember as many queries, cut to the budget at once."""
    part, each = take(layer, members), each_of(layer)
    if part.seen is not None:
        part = part._replace(seen=part.seen._replace(queries=part.seen.queries[..., -queries:, :]))
    if in_place(plan, part, 2) and plan.method.merge is None and not plan.compact:
        budget, held = plan.method.budget, part.rows
        late = behind(layer.rows, members, budget, held.length)
        # read first: what is at work on a buffer while it is to be written has it copied
        position = mx.depends([held.position], [late.keys, late.values])[0]
        slots = freed(plan, part._replace(rows=held._replace(position=position)))
        left = tuple(budget if i in members else n for i, n in enumerate(each.rows))
        return layer._replace(rows=move_behind(layer.rows, late, slots), each=each._replace(rows=left))
    part, _ = settle(plan, part, room=2)
    if len(members) < len(each.rows):
        return put_back(layer, members, part)
    return part._replace(each=each._replace(rows=(part.size,) * len(members)))


def _arrived(plan: Plan, each: Each, keys: mx.array, values: mx.array) -> Rows:
    """The next row of every sequence."""
    held = keys, values
    if plan.packing is not None:
        held = plan.packing.packed(keys, values)
        keys, values = plan.packing.unpacked(*held)
    position = mx.broadcast_to(stacked(each.tokens_seen), keys.shape[:3])
    return Rows(*held, position, columns_of(plan, keys, values, np.array(each.tokens_seen)))


def _resized(layer: Layer, n: int, bound: int) -> Layer:
    """With columns for n rows, and room for their keys and values."""
    held = layer.rows.position.shape[2]
    if n < held:  # their keys and values stay where they are, to be written over in place
        some = first(layer, n)
        rows = some.rows._replace(keys=layer.rows.keys, values=layer.rows.values)
        return some._replace(rows=rows)
    if n == held:
        return layer._replace(rows=reserve(layer.rows, n, bound))
    room = [(0, 0), (0, 0), (0, n - held)]
    rows = reserve(layer.rows, n, bound)
    rows = rows._replace(
        position=mx.pad(rows.position, room),
        columns={name: mx.pad(column, room) for name, column in rows.columns.items()},
    )
    seen = layer.seen
    return layer._replace(rows=rows, seen=None if seen is None else seen.joined(n - held, None))
