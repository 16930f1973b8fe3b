"""Cuts after an interval, of several layers at once: which rows stay, and where they go.

A layer goes on by itself then, as it does from a cut of its own (``vqx.state.exchange``).
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from vqx import kernels
from vqx.state import constants
from vqx.state.layer import Ahead, Each, Layer, Plan, Seen, Waiting
from vqx.state.positions import STEPS, closed_up_to, statistics
from vqx.state.rows import apart
from vqx.state.seats import Decision, as_they_are
from vqx.state.windows import Windows, windows

AT_ONCE = 2**25
"""Logits of one launch, in numbers (128 MiB of float32)."""


def groups(plan: Plan, layers: Sequence[Layer]) -> int:
    """Launches that layers made alike go to, so that none holds more logits than ``AT_ONCE``."""
    rows, waiting = layers[0].rows, layers[0].waiting
    if waiting is None:
        return 1
    like = kernels.Layers(waiting.queries, [rows.keys], rows.position, 0, waiting.scale, 0)
    if layers[0].each is None and kernels.multiplied(plan.method, like, len(waiting.queries)):
        return 1
    batch, heads, *_ = waiting.queries[0].shape
    each: int = batch * heads * max(len(waiting.queries), plan.most) * rows.length
    return -(-len(layers) * each // AT_ONCE)


def cut(
    plans: Sequence[Plan], layers: Sequence[Layer], turned: Sequence[mx.array | None], end: int
) -> list[Ahead] | None:
    """What is decided for each of several layers made alike, before the token at ``end``.

    ``turned`` are keys as attention read them, where they are not those held. None: no kernel serves the
    method so.
    """
    plan, first = plans[0], layers[0]
    if first.each is not None:
        return _cut_apart(plans, layers, first.each)
    scorer, keep, dressed = plan.method.scorer, plan.method.budget, _dressed(plans, layers)
    if dressed is None:
        return None
    waits = [layer.waiting for layer in layers if layer.waiting is not None and scorer.reads_queries]
    number, n = len(layers), first.rows.length
    queries, asked = _shown(plan, layers, waits)
    if asked is not None and asked.origin is not None:
        if any(other.rotary is not plan.rotary for other in plans):
            return None
        queries = [asked.placed(plan.rotary, n)]
    count = queries[0].shape[2] if queries else 1
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
        left = _looked(plan, layer, queries, place, asked)
        own = {name: column[place] for name, column in columns.items()}
        found.append(Ahead(left, kernels.Kept(slots[place], position[place], own), last))
    return found


def _shown(
    plan: Plan, layers: Sequence[Layer], waits: Sequence[Waiting]
) -> tuple[list[mx.array], Windows | None]:
    """The queries that a score looks at, as of ``kernels.Layers``.

    Also as windows, where some of them were shown before the last cut.
    """
    queries = _joined(waits)
    if not queries or queries[0].shape[2] >= plan.most:
        return queries, None
    asked = windows(layers).longer(queries, layers[0].rows.length)
    return [asked.queries], asked


def _looked(
    plan: Plan, layer: Layer, queries: Sequence[mx.array], place: int, asked: Windows | None
) -> Layer:
    """The layer at this place once the waiting ``queries`` were looked at, as of ``_shown``."""
    waiting, window, n = layer.waiting, plan.method.scorer.window, layer.rows.length
    if not queries or waiting is None or not window:
        return layer._replace(waiting=None)
    batch, heads = layer.rows.keys.shape[:2]
    if asked is not None:
        return layer._replace(waiting=None, seen=asked.seen(place, batch, heads))
    count = queries[place].shape[2]
    window = min(window, count)
    latest = queries[place] if count == window else queries[place][:, :, count - window :]
    latest = latest.reshape(batch, heads, -1, *latest.shape[2:])
    origin = np.arange(n - window, n, dtype=np.int32)[None] if plan.compact else None
    return layer._replace(waiting=None, seen=Seen(latest, waiting.scale, origin=origin))


NEVER = 2**31 - 1
"""A position that no query sees."""


def _cut_apart(plans: Sequence[Plan], layers: Sequence[Layer], each: Each) -> list[Ahead] | None:
    """As ``cut`` for the sequences of a batch that are due, of which all others keep what they have.

    All sequences' queries are looked at, as layer by layer. Rows behind those that go are written over
    themselves where none go, so that a buffer is written at once.
    """
    plan, rows, number = plans[0], layers[0].rows, len(layers)
    keep, n, dressed = plan.method.budget, rows.length, _dressed_apart(plans, layers, each)
    if dressed is None:
        return None
    waits = [layer.waiting for layer in layers if layer.waiting is not None]
    waits = waits if plan.method.scorer.reads_queries else []
    queries, asked = _shown(plan, layers, waits)
    count = queries[0].shape[2] if queries else 1
    start, generated = ([max(one - count, 0) for one in numbers] for numbers in each[1:])
    judged = kernels.seen_together(
        plan.method,
        dressed.columns,
        kernels.Layers(
            queries,
            [layer.rows.keys for layer in layers],
            dressed.position,
            tuple(start),
            waits[0].scale if waits else 1.0,
            tuple(generated),
            padded=not each.even,
        ),
    )
    if judged is None:
        return None
    batch, heads, _ = rows.position.shape
    due = [i for i, filled in enumerate(each.rows) if filled >= plan.full]
    at = mx.array([layer * batch + i for layer in range(number) for i in due])
    stay = kernels.kept(
        None if judged.guarded else plan.method,
        judged.score[at],
        dressed.position[at],
        {name: column[at] for name, column in judged.columns.items()},
        keep,
        end=mx.array([each.tokens_seen[i] for i in due] * number, mx.int32),
        in_place=True,
    )
    if stay is None:
        return None
    left = each._replace(rows=tuple(keep if i in due else filled for i, filled in enumerate(each.rows)))
    most = max(left.rows)

    def written(array: mx.array, new: mx.array) -> list[mx.array]:
        array = array[..., : max(most, new.shape[2])]
        array[at, :, : new.shape[2]] = new
        return [*mx.split(array, number)]

    stands = mx.broadcast_to(mx.arange(keep, n, dtype=mx.int32), (number * batch, heads, n - keep))
    slots, position = written(stands, stay.slots), written(dressed.position, stay.position)
    columns = {name: written(column, stay.columns[name]) for name, column in judged.columns.items()}
    held = [layer.rows for layer in layers]
    late = [
        _late([*buffers], keep, n) for buffers in zip(*((one.keys, one.values) for one in held), strict=True)
    ]
    return [
        Ahead(
            _looked(plan, layer, queries, place, asked)._replace(each=left),
            kernels.Kept(slots[place], position[place], {name: c[place] for name, c in columns.items()}),
            [buffers[place] for buffers in late],
        )
        for place, layer in enumerate(layers)
    ]


def _dressed_apart(plans: Sequence[Plan], layers: Sequence[Layer], each: Each) -> Decision | None:
    """As ``_dressed`` where each sequence has its latest rows behind its own; padding is at ``NEVER``."""
    rows, number, held = layers[0].rows, len(layers), as_they_are(layers)
    bare, (batch, heads, _, width) = rows.bare, rows.keys.shape
    inits = tuple([plan.method.scorer.init for plan in plans])
    filled, seen = (np.tile(np.array(numbers, np.int32), number) for numbers in each[:2])
    columns, position = held.columns, held.position
    if bare:
        if all(init is inits[0] for init in inits):
            late = constants.told(inits[0], (number * batch, heads, bare, width), seen - np.int32(bare))
        else:
            starts = tuple([one - bare for one in each.tokens_seen])
            late = constants.abreast(inits, (batch, heads, bare, width), starts)
        shape, room = (number * batch, heads, bare), [(0, 0), (0, 0), (0, bare)]
        if late is None or any(column.shape != shape for column in late.values()):
            return None
        latest = np.arange(-bare, 0, dtype=np.int32)
        slot, new = (mx.array((numbers[:, None] + latest)[:, None]) for numbers in (filled, seen))

        def longer(column: mx.array, new: mx.array) -> mx.array:
            return mx.put_along_axis(mx.pad(column, room), slot, new, axis=2)

        position = longer(position, mx.broadcast_to(new, shape))
        columns = {name: longer(column, late[name]) for name, column in columns.items()}
    if not each.even:
        mine = mx.array((np.arange(rows.length) < filled[:, None])[:, None])
        position = mx.where(mine, position, NEVER)
    return Decision(position, columns)


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
