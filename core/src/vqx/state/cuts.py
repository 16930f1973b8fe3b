"""Cuts after an interval, of several layers at once: which rows stay, and where they go.

A layer goes on by itself then, as it does from a cut of its own (``vqx.state.exchange``).
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from vqx import kernels
from vqx.state import constants
from vqx.state.layer import Ahead, Layer, Plan, Seen, Waiting
from vqx.state.positions import STEPS, closed_up_to, statistics
from vqx.state.rows import apart
from vqx.state.seats import Decision, as_they_are

AT_ONCE = 2**25
"""Logits of one launch, in numbers (128 MiB of float32)."""


def groups(plan: Plan, layers: Sequence[Layer]) -> int:
    """Launches that layers made alike go to, so that none holds more logits than ``AT_ONCE``."""
    rows, waiting = layers[0].rows, layers[0].waiting
    if waiting is None:
        return 1
    like = kernels.Layers(waiting.queries, [rows.keys], rows.position, 0, waiting.scale, 0)
    if kernels.multiplied(plan.method, like, len(waiting.queries)):
        return 1
    batch, heads, *_ = waiting.queries[0].shape
    each: int = batch * heads * len(waiting.queries) * rows.length
    return -(-len(layers) * each // AT_ONCE)


def cut(
    plans: Sequence[Plan], layers: Sequence[Layer], turned: Sequence[mx.array | None], end: int
) -> list[Ahead] | None:
    """What is decided for each of several layers made alike, before the token at ``end``.

    ``turned`` are keys as attention read them, where they are not those held. None: no kernel serves the
    method so.
    """
    plan, first = plans[0], layers[0]
    scorer, keep, dressed = plan.method.scorer, plan.method.budget, _dressed(plans, layers)
    if dressed is None:
        return None
    waits = [layer.waiting for layer in layers if layer.waiting is not None and scorer.reads_queries]
    queries = _joined(waits)
    count, number, n = queries[0].shape[2] if queries else 1, len(layers), first.rows.length
    stay = kernels.kept_together(
        plan.method,
        statistics(dressed.columns),
        kernels.Layers(
            queries,
            [layer.rows.keys if keys is None else keys for layer, keys in zip(layers, turned, strict=True)],
            dressed.position,
            end - count,
            waits[0].scale if waits else 1.0,
            max(first.generated - count, 0),
        ),
        keep,
    )
    if stay is None:
        return None
    if plan.compact:
        stay = closed_up_to(stay, dressed.position, dressed.columns[STEPS])
    slots, position = mx.split(stay.slots, number), mx.split(stay.position, number)
    columns = {name: mx.split(column, number) for name, column in stay.columns.items()}
    found, held = [], [layer.rows for layer in layers]
    late = zip(
        _late([rows.keys for rows in held], keep, n),
        _late([rows.values for rows in held], keep, n),
        strict=True,
    )
    for place, (layer, last) in enumerate(zip(layers, late, strict=True)):
        left, rows = layer._replace(waiting=None), layer.rows
        if waits and scorer.window:
            batch, heads = rows.keys.shape[:2]
            latest, window = queries[place], min(scorer.window, count)
            latest = latest if count == window else latest[:, :, count - window :]
            latest = latest.reshape(batch, heads, -1, *latest.shape[2:])
            origin = np.arange(n - window, n, dtype=np.int32)[None] if plan.compact else None
            left = left._replace(seen=Seen(latest, waits[place].scale, origin=origin))
        own = {name: column[place] for name, column in columns.items()}
        found.append(Ahead(left, kernels.Kept(slots[place], position[place], own), last))
    return found


def _joined(waits: Sequence[Waiting]) -> list[mx.array]:
    """The queries of each layer, ``[B, H * G, S, D]``."""
    count = len(waits[0].queries) if waits else 0
    found = None
    if count > 1:
        found = kernels.gathered([query for waiting in waits for query in waiting.queries], count, 0, 1)
    return [waiting.joined for waiting in waits] if found is None else found


def _late(buffers: Sequence[mx.array], first: int, end: int) -> list[mx.array]:
    """A copy of the rows from ``first`` to ``end`` of each."""
    found = kernels.gathered(buffers, 1, first, end - first)
    return [apart(buffer, first, end) for buffer in buffers] if found is None else found


def _dressed(plans: Sequence[Plan], layers: Sequence[Layer]) -> Decision | None:
    """Positions and statistics of all rows, the bare ones among them; None: these take rows to tell."""
    rows, start = layers[0].rows, layers[0].tokens_seen - layers[0].rows.bare
    held = as_they_are(layers)
    if not rows.bare:
        return held
    batch, heads, _, width = rows.keys.shape
    inits = tuple([plan.method.scorer.init for plan in plans])
    late = constants.together(inits, (batch, heads, rows.bare, width), start)
    shape = (len(layers) * batch, heads, rows.bare)
    if late is None or any(column.shape != shape for column in late.values()):
        return None
    new = mx.broadcast_to(mx.arange(start, start + rows.bare, dtype=mx.int32), shape)
    if STEPS in held.columns:  # rows that came last moved nowhere yet
        late = {**late, STEPS: mx.zeros(new.shape, mx.int32)}
    columns = {k: mx.concatenate([c, late[k]], axis=2) for k, c in held.columns.items()}
    return Decision(mx.concatenate([held.position, new], axis=2), columns)
