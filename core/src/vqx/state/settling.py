"""What is pending is settled: rows are ranked, and those that go make room."""

from collections.abc import Mapping
from typing import NamedTuple

import mlx.core as mx

from vqx import eviction, kernels
from vqx.ranking import top
from vqx.scorers import Held, Method
from vqx.state import lanes
from vqx.state.layer import Layer, Plan, dense, next_place, placed, position_of, stats_of
from vqx.state.positions import STEPS, closed_up, closed_up_over, statistics
from vqx.state.processes import Processes
from vqx.state.queries import latest
from vqx.state.replay import replay
from vqx.state.rows import Rows, move, moved, pick


def settle(plan: Plan, layer: Layer, room: int) -> tuple[Layer, mx.array | None]:
    """Evict what is due; also the slot to overwrite, where one row goes and one comes (``room`` 1).

    The layer must be caught up.
    """
    method, rows, known = plan.method, layer.rows, layer.score
    layer = layer._replace(score=None)
    if plan.replays(layer):
        slots, columns = _replayed(plan, layer)
        if plan.compact:
            gone = mx.put_along_axis(mx.ones(rows.position.shape, mx.bool_), slots, mx.array(False), axis=2)
            rows = closed_up(rows, gone)
        kept = pick(rows, slots, room)
        kept = kept._replace(columns={**kept.columns, **columns})
        return layer._replace(rows=kept, evicted=plan.due(layer) or layer.evicted), None
    if not plan.due(layer):
        return layer, None
    held = held_of(plan, layer)
    known = scored(method, held) if known is None else mx.broadcast_to(known, held.position.shape)
    dropped = _dropped(plan, layer, known, room)
    if dropped is not None:
        return dropped, None
    protected = eviction.safe(method, held.position, held.newest)
    layer, score = _together(plan, layer, held, eviction.guarded(known, protected))
    if plan.across is not None and method.floor is not None:
        return _over_processes(plan, plan.across, layer, score, room)
    rows, heads = layer.rows, layer.heads
    age = rows.position if heads == 1 else rows.position * heads + rows.columns["head"]
    layer = layer._replace(evicted=True)
    if layer.size == method.budget + 1 and room == 1:
        slot = eviction.victims(score, age, heads)
        if method.merge is not None:
            rows = _merged(plan, held, rows, mx.arange(layer.size) == slot)
        return layer._replace(rows=closed_up_over(rows, slot) if plan.compact else rows), slot
    keep = method.budget * heads
    few = in_place(plan, layer, room)
    stay = _best(score, age, keep)
    rows = _merged(plan, held, rows, ~stay)
    rows = closed_up(rows, ~stay) if plan.compact else rows
    if few:
        return layer._replace(rows=move(rows, eviction.freed(stay, keep))), None
    slots = eviction.survivors(stay, age, keep)
    seen = None if layer.seen is None else layer.seen.kept(slots)
    return layer._replace(rows=pick(rows, slots, room * heads), seen=seen), None


def _dropped(plan: Plan, layer: Layer, score: mx.array, room: int) -> Layer | None:
    """The layer after a cut by kernels that guard, choose and carry along; None: none serves it."""
    method, rows = plan.method, layer.rows
    shared = layer.heads > 1 or method.floor is not None or layer.each is not None
    if shared or method.merge is not None or plan.compact or kernels.target() == "reference":
        return None
    if in_place(plan, layer, room) or (layer.size == method.budget + 1 and room == 1):
        return None
    known = kernels.kept(
        method,
        score,
        rows.position,
        rows.columns,
        method.budget,
        end=layer.end,
        in_place=False,
    )
    if known is None:
        return None
    seen = None if layer.seen is None else layer.seen.kept(known.slots)
    return layer._replace(rows=pick(rows, known.slots, room, known), seen=seen, evicted=True)


def in_place(plan: Plan, layer: Layer, room: int) -> bool:
    """Whether few rows go, from a buffer that is as large as it has to be: they are written over."""
    excess = layer.size - plan.method.budget
    fits = layer.last == 1 and excess <= plan.options.interval and room <= plan.options.interval
    return fits and plan.defers and layer.heads == 1 and not (layer.seen and layer.seen.logits)


def staying(plan: Plan, layer: Layer) -> kernels.Kept:
    """The rows that stay of a cut ``in_place``, which the method ranks alone; the layer must be caught up."""
    method, held, rows = plan.method, held_of(plan, layer), layer.rows
    score = scored(method, held)
    found = kernels.kept(
        method, score, rows.position, statistics(rows.columns), method.budget, end=layer.end, in_place=True
    )
    if found is not None:
        return found
    slots = _freed(method, held, score)
    columns = {name: moved(column, slots) for name, column in rows.columns.items()}
    return kernels.Kept(slots, moved(rows.position, slots), columns)


def freed(plan: Plan, layer: Layer) -> mx.array:
    """Where a cut ``in_place`` writes the rows behind the first ``budget``: as of ``vqx.eviction.freed``."""
    held = held_of(plan, layer)
    return _freed(plan.method, held, scored(plan.method, held))


def _freed(method: Method, held: Held, score: mx.array) -> mx.array:
    protected = eviction.safe(method, held.position, held.newest)
    return eviction.freed(
        _best(eviction.guarded(score, protected), held.position, method.budget), method.budget
    )


def _best(score: mx.array, age: mx.array, keep: int) -> mx.array:
    """The ``keep`` highest scores, as booleans ``[B, H, n]``; of equal ones the newest."""
    stay = kernels.highest(score, age, keep)
    return top(score, age, keep) if stay is None else stay


def judged(plan: Plan, layer: Layer) -> Layer:
    """The layer with its rows' scores instead of the one query that they hang on.

    That is where attention said what the query gives to each row, rows go before the next come, and nothing
    else asks for it: a query of all heads weighs as much as rows. The layer must be caught up.
    """
    scorer, seen = plan.method.scorer, layer.seen
    asked = scorer.observe is not None or scorer.window != 1 or plan.method.merge is not None
    if asked or seen is None or seen.known is None or not plan.due(layer):
        return layer
    held = held_of(plan, layer)
    score = mx.array(scorer.score(held))
    return layer._replace(score=score if score.ndim == 3 else scored(plan.method, held), seen=None)


class Ranked(NamedTuple):
    """The rows of a layer as its next cut ranks them."""

    position: mx.array  # [B, H, n]; lanes.ELSEWHERE where a row is another head's
    score: mx.array  # [B, H, n] float32: inf where no score can evict, NaN where a replay decides later
    stays: mx.array  # [B, H, n] booleans: what that cut leaves


def ranked(plan: Plan, layer: Layer) -> Ranked:
    """What a method thinks of the rows held, for pictures; the layer stays as it is."""
    held = held_of(plan, layer)
    score = mx.full(held.position.shape, mx.nan)
    if not plan.replays(layer):
        safe = eviction.safe(plan.method, held.position, held.newest)
        known = scored(plan.method, held) if layer.score is None else layer.score
        score = eviction.guarded(mx.broadcast_to(known, held.position.shape), safe)
    # room for two rows: with room for one, settling names a slot instead of dropping its row
    left = position_of(settle(plan, layer, room=2)[0])
    stays = mx.any(held.position[..., None] == left[..., None, :], axis=-1)
    return Ranked(held.position, score, stays & (held.position != lanes.ELSEWHERE))


def _together(plan: Plan, layer: Layer, held: Held, score: mx.array) -> tuple[Layer, mx.array]:
    """Where heads share a budget, one ranking of all their rows, each head's best up to the floor on top."""
    (batch, heads, _), method = score.shape, plan.method
    if method.floor is None or heads == 1:
        return layer, score
    theirs = held.position == lanes.ELSEWHERE
    best = top(mx.where(theirs, -mx.inf, score), held.position, int(method.floor * method.budget))
    score = mx.where(best, mx.maximum(score, eviction.LARGEST), score)
    if layer.heads == heads:
        return layer, lanes.own(score, layer.rows, heads)
    return layer._replace(rows=lanes.one_lane(layer.rows), heads=heads), score.reshape(batch, 1, -1)


def _over_processes(
    plan: Plan, of: Processes, layer: Layer, score: mx.array, room: int
) -> tuple[Layer, mx.array | None]:
    """Settle one lane where processes share its heads: the best rows of all stay, wherever they are.

    How many of them are here depends on scores, which no shape may: a lane has room for as many as the
    floors of other heads leave. Rows beyond those that stay are padding, of head -1, which goes first.
    """
    rows, heads, (_, budget, *_) = layer.rows, layer.heads, plan.method
    n, every, head = rows.length, heads * of.size, rows.columns["head"]
    first = of.size * n  # ages of padding stand below, so that all are distinct
    age = rows.position * every + (first + of.rank * heads) + head
    age = mx.where(head < 0, mx.arange(n, dtype=mx.int32) + of.rank * n, age)
    score = mx.where(head < 0, -mx.inf, score)
    stay = of.own(top(of.every(score), of.every(age), budget * every))
    rows = rows._replace(columns={**rows.columns, "head": mx.where(stay, head, -1)})
    most = budget * every - (every - heads) * int((plan.method.floor or 0.0) * budget)
    if layer.size == budget + 1 and room == 1 and n >= most + heads:
        slot = eviction.victims(stay.astype(mx.float32), age, heads)
        return layer._replace(rows=rows, evicted=True), slot
    held = min(most, n)
    rows = pick(rows, eviction.survivors(stay, age, held), room * heads)
    return layer._replace(rows=rows, evicted=True, padding=held - heads * budget), None


def held_of(plan: Plan, layer: Layer) -> Held:
    """What a score looks at."""
    together = plan.method.floor is not None and layer.heads * layer.rows.position.shape[1] > 1

    def one_set(mean: mx.array) -> mx.array:
        raise lanes.CannotShare(
            "heads that share a budget keep rows of their own, and this method keeps one set of rows for all"
            " heads of a layer; share the budget of a method whose heads rank alone (heads='each')"
        )

    def read() -> tuple[mx.array, mx.array]:
        if together:
            raise lanes.CannotShare(
                "heads that share a budget hold their rows together, and this method reads keys or values"
                " head by head; share the budget of a method that ranks by attention"
            )
        return placed(plan, layer), dense(plan, layer)[1]

    return Held(
        stats=stats_of(layer),
        position=position_of(layer),
        newest=layer.end - 1,
        read=read,
        last=latest(plan, layer),
        notes=layer.notes,
        rotary=plan.rotary,
        place=next_place(plan, layer),
        across=one_set if together else None if plan.across is None else plan.across.mean,
    )


def scored(method: Method, held: Held) -> mx.array:
    """The method's score of every row, ``[B, H, n]``."""
    return mx.broadcast_to(mx.array(method.scorer.score(held)), held.position.shape)


def _merged(plan: Plan, held: Held, rows: Rows, gone: mx.array) -> Rows:
    """Let the method add to the values of rows that stay what the others take with them."""
    if plan.method.merge is None:
        return rows
    values = plan.method.merge(held, gone).astype(rows.values.dtype)
    return rows._replace(values=mx.slice_update(rows.values, values, mx.array([0]), axes=[2]))


def _replayed(plan: Plan, layer: Layer) -> tuple[mx.array, Mapping[str, mx.array]]:
    own = {name: column for name, column in layer.rows.columns.items() if name != STEPS}
    seen, rows = layer.seen, layer.rows._replace(keys=placed(plan, layer), columns=own)
    if plan.packing is not None:
        rows = rows._replace(values=dense(plan, layer)[1])
    return replay(
        plan.method,
        rows,
        None if seen is None else seen.queries,
        new=layer.last,
        start=layer.tokens_seen - layer.last,
        scale=1.0 if seen is None else seen.scale,
        sinks=None if seen is None else seen.sinks,
        across=None if plan.across is None else plan.across.mean,
    )
