"""New rows come to a layer, once what is pending is settled."""

from typing import Any

import mlx.core as mx
import numpy as np

from vqx.scorers import Arrivals
from vqx.state import constants, lanes
from vqx.state.layer import Each, Layer, Plan, dense, stacked
from vqx.state.positions import STEPS
from vqx.state.queries import watch
from vqx.state.rows import Rows, append, append_bare, begin, going, overwrite
from vqx.state.settling import settle


def admit(plan: Plan, layer: Layer | None, keys: mx.array, values: mx.array) -> Layer:
    """Settle what is pending, then hold S more rows: keys ``[B, H, S, D]``, rotated for where they stand."""
    length = keys.shape[2]
    if layer is not None and length == 1 and plan.spare(layer):
        return admit_bare(plan, layer, mx.depends([keys], layer.carried)[0], values)
    start = layer.tokens_seen if layer is not None else 0
    new = begun(plan, keys, values, start)
    bound = (plan.method.budget + plan.options.interval) * (1 if layer is None else layer.heads)
    if layer is None:
        return Layer(begin(new, bound), tokens_seen=length, last=length, generated=int(length == 1))
    layer = caught_up(plan, layer)
    # what no logits need is evaluated with this forward: no graph grows over tokens
    new = new._replace(keys=mx.depends([new.keys], layer.carried)[0])
    layer, slot = settle(plan, layer, room=max(length, plan.options.interval))
    new = new if layer.heads == 1 else lanes.one_lane(new)
    gone = None
    if slot is not None and plan.options.undo:  # read before it is written over
        gone = going(layer.rows, slot)
        keys, values = mx.depends([new.keys, new.values], [gone.keys, gone.values])
        new = new._replace(keys=keys, values=values)
    return layer._replace(
        rows=append(layer.rows, new, bound) if slot is None else overwrite(layer.rows, slot, new),
        seen=None if layer.seen is None else layer.seen.joined(length, slot),
        gone=gone,
        tokens_seen=start + length,
        last=length,
        generated=layer.generated + 1 if length == 1 else 0,
    )


def admit_bare(plan: Plan, layer: Layer, keys: mx.array, values: mx.array) -> Layer:
    """Hold one more row, ``[B, H, 1, D]``, and leave all else for later: where ``Plan.spare`` says so."""
    if plan.packing is not None:
        keys, values = plan.packing.packed(keys, values)
    rows = append_bare(layer.rows, keys, values)
    return layer._replace(rows=rows, tokens_seen=layer.tokens_seen + 1, last=1, generated=layer.generated + 1)


def caught_up(plan: Plan, layer: Layer) -> Layer:
    """The layer with nothing left for later: bare rows get their columns, the scorer sees what waits."""
    layer, waiting = dressed(plan, layer)._replace(ahead=None), layer.waiting
    if waiting is None:
        return layer
    queries, later = waiting.block(layer.rows.keys.shape[1]), layer.tokens_seen - waiting.end
    layer = layer._replace(waiting=None)
    known = waiting.known if not later else None
    return watch(
        plan,
        layer,
        queries,
        scale=waiting.scale,
        mask=_own(layer, queries.shape[3], later),
        sinks=waiting.sinks,
        later=later,
        known=known,
    )


def dressed(plan: Plan, layer: Layer) -> Layer:
    """The layer with the positions and columns of its bare rows."""
    rows = layer.rows
    if not rows.bare:
        return layer
    n, start = rows.position.shape[2], layer.tokens_seen - rows.bare
    if layer.each is not None:
        return _dressed_apart(plan, layer, layer.each)
    keys, values = (array[:, :, n:] for array in dense(plan, layer))
    late = columns_of(plan, keys, values, start)
    position = mx.concatenate([rows.position, _count(keys, start)], axis=2)
    columns = {k: mx.concatenate([c, late[k]], axis=2) for k, c in rows.columns.items()}
    return layer._replace(rows=Rows(rows.keys, rows.values, position, columns))


def _dressed_apart(plan: Plan, layer: Layer, each: Each) -> Layer:
    """The same where each sequence has its latest rows behind its own."""
    rows, bare = layer.rows, layer.rows.bare
    number, shape = mx.arange(bare, dtype=mx.int32), (*rows.position.shape[:2], bare)
    slot = mx.broadcast_to(stacked(tuple(n - bare for n in each.rows)) + number, shape)
    start = tuple(seen - bare for seen in each.tokens_seen)
    keys, values = (mx.take_along_axis(array, slot[..., None], axis=2) for array in dense(plan, layer))
    late, room = columns_of(plan, keys, values, np.array(start)), [(0, 0), (0, 0), (0, bare)]

    def longer(column: mx.array, new: mx.array) -> mx.array:
        return mx.put_along_axis(mx.pad(column, room), slot, new, axis=2)

    position = longer(rows.position, mx.broadcast_to(stacked(start) + number, shape))
    columns = {name: longer(column, late[name]) for name, column in rows.columns.items()}
    return layer._replace(rows=Rows(rows.keys, rows.values, position, columns))


def _own(layer: Layer, count: int, later: int) -> Any:
    """Which rows the last queries but ``later`` see: ``[B, 1, count, n]`` booleans where sequences differ."""
    each = layer.each
    if each is None or (each.even and count == 1 and not later):
        return "causal"
    first = later + count - 1  # rows that came after that of the first query
    end = np.array(each.rows)[:, None] - first + np.arange(count)
    return mx.array((np.arange(layer.rows.length) < end[..., None])[:, None])


def begun(plan: Plan, keys: mx.array, values: mx.array, start: int) -> Rows:
    """New rows with what they start with."""
    held = keys, values
    if plan.packing is not None:  # a method sees rows as they are held
        held = plan.packing.packed(keys, values)
        keys, values = plan.packing.unpacked(*held)
    known = None if plan.compact else constants.started(plan.method.scorer.init, keys.shape, start)
    if known is not None:
        return Rows(*held, *known)
    return Rows(*held, _count(keys, start), columns_of(plan, keys, values, start))


def columns_of(plan: Plan, keys: mx.array, values: mx.array, start: Any) -> dict[str, mx.array]:
    """What rows start with, ``[B, H, S]`` each; ``start`` as of ``vqx.Arrivals``."""
    init = plan.method.scorer.init
    found = constants.columns(init, keys.shape, start)
    if found is None:
        found = {name: constants.held(column) for name, column in init(Arrivals(keys, values, start)).items()}
    return {**found, STEPS: mx.zeros(keys.shape[:3], mx.int32)} if plan.compact else dict(found)


def _count(keys: mx.array, start: int) -> mx.array:
    """Positions of new rows from ``start`` on, ``[B, H, S]``."""
    batch, heads, length, _ = keys.shape
    if length == 1:
        return mx.full((batch, heads, 1), start, mx.int32)
    return constants.counted(batch, heads, start, length)
