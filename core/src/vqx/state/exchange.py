"""A token that rows go for, decided in the forward before: by kernels, in as few launches as there are.

What a GPU reads in a token takes it less time than the host needs to ask for it, so what counts is how often
it asks. Cuts after an interval are decided so without kernels too. All else goes by ``vqx.state.arrival``,
which this equals.
"""

import mlx.core as mx

from vqx import kernels
from vqx.state.arrival import begun, caught_up, dressed
from vqx.state.attention import Block
from vqx.state.layer import Ahead, Layer, Plan
from vqx.state.positions import STEPS, closed_up_to, statistics
from vqx.state.queries import block_of, latest, remember
from vqx.state.rows import Rows, apart
from vqx.state.settling import held_of, in_place, scored, staying


def exchanged(plan: Plan, layer: Layer, keys: mx.array, values: mx.array) -> Layer | None:
    """As ``vqx.state.arrival.admit`` for a token, ``[B, H, 1, D]``, over the one row that goes.

    None where nothing is decided so.
    """
    ahead = layer.ahead or decided(plan, layer)
    if ahead is None or not isinstance(ahead.what, kernels.Chosen):
        return None
    return _over_one(plan, ahead.layer, ahead.what, keys, values)


def closed(plan: Plan, layer: Layer) -> Layer | None:
    """The layer once rows that stay are written over many that go, and tokens have room; None as above."""
    ahead = layer.ahead or decided(plan, layer)
    if ahead is None or not isinstance(ahead.what, kernels.Kept):
        return None
    at = ahead.what.slots[..., None]
    rows = ahead.layer.rows
    held = zip((rows.keys, rows.values), ahead.late, strict=True)
    keys, values = (mx.put_along_axis(buffer, at, last, axis=2) for buffer, last in held)
    rows = Rows(keys, values, ahead.what.position, ahead.what.columns)
    return ahead.layer._replace(rows=rows, evicted=True)


def decided(plan: Plan, layer: Layer) -> Ahead | None:
    """What goes for the next token, if anything does and it can be said; asked once a token's query waits.

    That is in the forward before: one that reads a buffer besides cannot write it in place.
    """
    method, options = plan.method, plan.options
    plain = layer.heads == 1 and layer.last == 1 and layer.each is None and layer.score is None
    if not plain or not plan.due(layer) or not plan.defers or (layer.seen is not None and layer.seen.logits):
        return None
    apart = plan.packing is None and method.merge is None and not options.undo
    if not apart or method.scorer.note is not None or method.scorer.rotary:
        return None
    if options.interval > 1:
        return _many(plan, layer) if in_place(plan, layer, 1) else None
    one = layer.size == method.budget + 1 and kernels.target() != "reference"
    return _one(plan, layer) if one and not plan.compact else None


def _one(plan: Plan, layer: Layer) -> Ahead | None:
    """The one row that goes."""
    method, rows = plan.method, layer.rows
    shown = None if rows.bare else _shown(plan, layer)
    if shown is not None:
        looked, block = shown
        found = kernels.step(method, rows.columns, block, whole=layer.written is rows.position)
        if found is not None:
            columns = {**rows.columns, **found.columns}
            return Ahead(looked._replace(rows=rows._replace(columns=columns)), found)
    layer = caught_up(plan, layer)
    held = held_of(plan, layer)
    found = kernels.exchange(method, scored(method, held), held.position, layer.end)
    return None if found is None else Ahead(layer, found)


def _shown(plan: Plan, layer: Layer) -> tuple[Layer, Block | None] | None:
    """The layer with its waiting queries remembered, and the attention that the method's kernel looks at.

    None: no kernel of the method's own, or no query waits.
    """
    scorer, waiting = plan.method.scorer, layer.waiting
    if scorer.kernel is None or waiting is None:
        return None
    queries = waiting.block(layer.rows.keys.shape[1])
    block = block_of(plan, layer, queries, scale=waiting.scale, sinks=waiting.sinks)
    looked = remember(plan, layer._replace(waiting=None), block, False)
    return looked, latest(plan, looked) if scorer.window else block


def _over_one(plan: Plan, layer: Layer, chosen: kernels.Chosen, keys: mx.array, values: mx.array) -> Layer:
    """The token written over the row that was chosen."""
    rows, start, at = layer.rows, layer.tokens_seen, chosen.slot[..., None]
    position, columns = chosen.position, rows.columns
    if position is None or len(chosen.columns) < len(columns):
        new = begun(plan, keys, values, start)
        known = {} if position is None else chosen.columns
        fresh = {name: column for name, column in new.columns.items() if name not in known}
        columns = {
            **columns,
            **{k: mx.put_along_axis(columns[k], chosen.slot, c, axis=2) for k, c in fresh.items()},
        }
        if position is None:
            position = mx.put_along_axis(rows.position, chosen.slot, new.position, axis=2)
        # no logits need them, and no graph grows over tokens
        keys = mx.depends([keys], [position, *columns.values()])[0]
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
        written=chosen.position,
    )


def _many(plan: Plan, layer: Layer) -> Ahead | None:
    """The rows that stay of many."""
    method, keep = plan.method, plan.method.budget
    layer = dressed(plan, layer)
    shown = _shown(plan, layer)
    ranked = None if shown is None else kernels.ranked(method, statistics(layer.rows.columns), shown[1])
    if shown is None or ranked is None:
        layer = caught_up(plan, layer)
        stay: kernels.Kept | None = staying(plan, layer)
    else:
        (layer, _), (columns, score) = shown, ranked
        position = layer.rows.position
        stay = kernels.kept(None, score, position, columns, keep, end=layer.end, in_place=True)
    if stay is None:
        return None
    rows = layer.rows
    if plan.compact:
        stay = closed_up_to(stay, rows.position, rows.columns[STEPS])
    return Ahead(layer, stay, [apart(buffer, keep, rows.length) for buffer in (rows.keys, rows.values)])
