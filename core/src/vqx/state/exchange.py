"""A token that rows go for, by kernels: they score, choose and carry along in as few launches as there are.

What a GPU reads in a token takes it less time than the host needs to ask for it, so what counts is how often
it asks. All else, and every device without kernels, goes by ``vqx.state.layer``, which this equals.
"""

import mlx.core as mx

from vqx import kernels
from vqx.state.layer import (
    Layer,
    Plan,
    admit_bare,
    begun,
    block_of,
    caught_up,
    dressed,
    held_of,
    in_place,
    latest,
    remember,
    waiting_queries,
)
from vqx.state.rows import Rows, apart


def exchanged(plan: Plan, layer: Layer, keys: mx.array, values: mx.array) -> Layer | None:
    """As ``vqx.state.layer.admit`` for one token, ``[B, H, 1, D]``; None where no kernel serves the layer."""
    method, options = plan.method, plan.options
    plain = layer.heads == 1 and layer.last == 1 and layer.each is None
    if not plain or not plan.due(layer) or not plan.defers or (layer.seen is not None and layer.seen.logits):
        return None
    apart = plan.packing is None and plan.rotary is None and method.merge is None and not options.undo
    if not apart or method.scorer.note is not None or kernels.target() == "reference":
        return None
    if options.interval > 1:
        left = cut(plan, layer) if in_place(plan, layer, 1) else None
        return None if left is None else admit_bare(plan, left, keys, values)
    return one_for_one(plan, layer, keys, values) if layer.size == method.budget + 1 else None


def one_for_one(plan: Plan, layer: Layer, keys: mx.array, values: mx.array) -> Layer | None:
    """One row goes, and the token is written in its place."""
    method, rows, found = plan.method, layer.rows, None
    queries = waiting_queries(layer) if method.scorer.kernel is not None and not rows.bare else None
    if queries is not None and layer.waiting is not None:
        waiting = layer.waiting
        block = block_of(plan, layer, queries, scale=waiting.scale, sinks=waiting.sinks)
        looked = remember(plan, layer._replace(waiting=None), block, False)
        found = kernels.step(
            method,
            rows.columns,
            latest(plan, looked) if method.scorer.window else block,
            whole=layer.written is rows.position,
        )
    if found is not None:
        layer = looked
        rows = rows._replace(columns={**rows.columns, **found.columns})
    else:
        layer = caught_up(plan, layer)
        rows, held = layer.rows, held_of(plan, layer)
        keys = mx.depends([keys], layer.carried)[0]  # no graph grows over tokens
        score = mx.broadcast_to(mx.array(method.scorer.score(held)), held.position.shape)
        found = kernels.exchange(method, score, held.position, layer.end)
        if found is None:
            return None
    start, at = layer.tokens_seen, found.slot[..., None]
    position, columns = found.position, rows.columns
    if position is None or len(found.columns) < len(columns):
        new = begun(plan, keys, values, start, start)
        known = {} if position is None else found.columns
        fresh = {name: column for name, column in new.columns.items() if name not in known}
        columns = {
            **columns,
            **{k: mx.put_along_axis(columns[k], found.slot, c, axis=2) for k, c in fresh.items()},
        }
        if position is None:
            position = mx.put_along_axis(rows.position, found.slot, new.position, axis=2)
    return layer._replace(
        rows=Rows(
            mx.put_along_axis(rows.keys, at, keys, axis=2),
            mx.put_along_axis(rows.values, at, values, axis=2),
            position,
            columns,
        ),
        tokens_seen=start + 1,
        generated=layer.generated + 1,
        evicted=True,
        written=found.position,
    )


def cut(plan: Plan, layer: Layer) -> Layer | None:
    """Many rows go: those that stay behind the others are written over them."""
    method, keep = plan.method, plan.method.budget
    scores = None
    layer = dressed(plan, layer)
    queries = waiting_queries(layer) if method.scorer.kernel is not None else None
    if queries is not None and layer.waiting is not None:
        waiting = layer.waiting
        block = block_of(plan, layer, queries, scale=waiting.scale, sinks=waiting.sinks)
        looked = remember(plan, layer._replace(waiting=None), block, False)
        scores = kernels.ranked(
            method, layer.rows.columns, latest(plan, looked) if method.scorer.window else block
        )
    if scores is not None:
        columns, score = scores
        layer, guarding = looked, None
    else:
        layer = caught_up(plan, layer)
        held, guarding = held_of(plan, layer), method
        columns, score = held.stats, mx.broadcast_to(mx.array(method.scorer.score(held)), held.position.shape)
    rows = layer.rows
    stay = kernels.kept(guarding, score, rows.position, columns, keep, end=layer.end, in_place=True)
    if stay is None:
        return None

    def moved(buffer: mx.array) -> mx.array:
        last = apart(buffer, keep, rows.length)
        return mx.put_along_axis(buffer, stay.slots[..., None], last, axis=2)

    left = Rows(moved(rows.keys), moved(rows.values), stay.position, stay.columns)
    return layer._replace(rows=left, evicted=True)
