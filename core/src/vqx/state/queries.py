"""What a layer makes of queries: those that wait, those that a score asks for again, what a scorer sees."""

from typing import Any

import mlx.core as mx
import numpy as np

from vqx import kernels
from vqx.state import lanes
from vqx.state.attention import Block, Known
from vqx.state.layer import Layer, Places, Plan, Seen, Waiting, next_place, placed, position_of, stats_of


def wait(
    plan: Plan,
    layer: Layer,
    queries: mx.array,
    scale: float,
    sinks: mx.array | None,
    mass: mx.array | None = None,
) -> Layer:
    """Hold the query ``[B, H * G, 1, D]`` of the token generated last until the layer is caught up.

    ``mass`` ``[B, H, n]`` is what its attention gave to each row, the mean over its group.
    """
    waiting = layer.waiting
    held: tuple[mx.array, ...] = (queries,)
    known = None if mass is None else Known(mass)
    if waiting is not None and plan.most:
        held = (*waiting.queries, queries)[-plan.most :]
        known = known if len(held) == 1 else None
    elif waiting is not None:
        held = (*waiting.queries, queries)
        known = _added(waiting.known, mass, plan.method.scorer.decay)
    return layer._replace(waiting=Waiting(held, layer.tokens_seen, scale, sinks, known))


def _added(known: Known | None, mass: mx.array | None, decay: float | None) -> Known | None:
    """The mass of one query more, which sees rows that came since; None where a part of it is not known."""
    if known is None or mass is None or decay is None:
        return None
    before = mx.pad(known.mass, [(0, 0), (0, 0), (0, mass.shape[2] - known.mass.shape[2])])
    return Known((before if decay == 1.0 else before * decay) + mass, decay)


def watch(
    plan: Plan,
    layer: Layer,
    queries: mx.array,
    *,
    scale: float,
    mask: Any = "causal",
    sinks: mx.array | None = None,
    keys: mx.array | None = None,
    logits: bool = False,
    later: int = 0,
    known: Known | None = None,
    given: mx.array | None = None,
) -> Layer:
    """Let the scorer see the queries ``[B, H, G, S, D]`` of the rows admitted last.

    ``keys`` are what attention reads, ``logits`` says that they cannot be repeated from the rows alone;
    ``later`` tokens were admitted since; ``known`` is what attention itself gave to each row, and ``given``
    ``[B, H, G, S, n]`` are its weights.
    """
    scorer = plan.method.scorer
    block = block_of(plan, layer, queries, scale=scale, mask=mask, sinks=sinks, keys=keys, later=later)
    if known is not None or given is not None:
        block = block._replace(known=known, given=given)
    layer = remember(plan, layer, block, logits or (layer.seen is not None and layer.seen.logits))
    if scorer.note is not None:
        layer = layer._replace(notes=scorer.note(layer.notes, *_unturned(plan, layer, queries, scale, later)))
    if scorer.observe is None or plan.replays(layer):
        return layer
    found = kernels.observed(plan.method, stats_of(layer), block)
    if found is not None:
        score = found[1] if layer.last > 1 and plan.due(layer) else None
        return layer._replace(rows=layer.rows._replace(columns=found[0]), score=score)
    observed = scorer.observe(stats_of(layer), block)
    if layer.heads > 1:
        observed = {name: lanes.own(column, layer.rows, layer.heads) for name, column in observed.items()}
    columns = {**layer.rows.columns, **observed}
    return layer._replace(rows=layer.rows._replace(columns=columns))


def block_of(
    plan: Plan,
    layer: Layer,
    queries: mx.array,
    *,
    scale: float,
    mask: Any = "causal",
    sinks: mx.array | None = None,
    keys: mx.array | None = None,
    later: int = 0,
) -> Block:
    """The attention of queries, as of ``watch``."""
    return Block(
        queries=queries,
        keys=placed(plan, layer) if keys is None else keys,
        position=position_of(layer),
        start=layer.end - later - queries.shape[3],
        scale=scale,
        mask=mask,
        sinks=sinks,
        generated=_generated_before(layer, later + queries.shape[3]),
        decoded=layer.last == 1,
        later=later,
        ordered=layer.each is None,
        elsewhere=layer.heads > 1,
    )


def stand_ins(plan: Plan, layer: Layer, keys: mx.array) -> tuple[Layer, mx.array]:
    """Keys ``[B, H, S, D]`` in the place of queries, as such or less the mean of all keys so far."""
    if plan.options.queries == "keys":
        return layer, keys
    wide = keys.astype(mx.float32)
    total = mx.cumsum(wide, axis=2)
    if layer.key_sum is not None:
        total = total + layer.key_sum
    length = keys.shape[2]
    count = (layer.end - length) + mx.arange(1, length + 1)  # [S], or [B, 1, S]
    return layer._replace(key_sum=total[..., -1:, :]), wide - total / count[..., None]


def _generated_before(layer: Layer, count: int) -> int | tuple[int, ...]:
    """Tokens generated before the last ``count``."""
    if layer.each is None:
        return max(layer.generated - count, 0)
    return tuple(max(generated - count, 0) for generated in layer.each.generated)


def remember(plan: Plan, layer: Layer, block: Block, logits: bool) -> Layer:
    """Hold the last ``window`` queries, or for a replay also those of the whole block."""
    window, length = plan.method.scorer.window, block.length
    wanted = window
    if plan.replays(layer) and plan.method.scorer.reads_queries:
        wanted = max(window - 1, 0) + length
    if not wanted:
        return layer
    queries, origin = block.shown(wanted) if logits else block.queries, _origin(plan, layer, block)
    if layer.seen is not None and wanted > length:
        if logits and not layer.seen.logits:
            raise ValueError(
                "the model adds numbers to its logits in some forwards only, which a score over earlier"
                " queries cannot follow; use queries='centred-keys'"
            )
        queries = mx.concatenate([layer.seen.queries, queries], axis=3)
        origin = _behind(layer.seen.origin, origin)
    if queries.shape[3] > wanted:  # copied as of `apart`, since a view would keep all of them
        middle = queries.shape[3] - (wanted + 1) // 2
        halves = queries[..., queries.shape[3] - wanted : middle, :], queries[..., middle:, :]
        queries = mx.concatenate([*halves], axis=3)  # row by row, as kernels read those of several layers
    origin = None if origin is None else origin[:, -wanted:]
    known = block.known if wanted == 1 else None
    return layer._replace(seen=Seen(queries, block.scale, block.sinks, logits, origin, known))


def _origin(plan: Plan, layer: Layer, block: Block) -> Places | None:
    """The places that a block's queries were rotated for."""
    if not plan.compact:
        return None
    rows = np.array([layer.size] if layer.each is None else layer.each.rows, np.int32)
    return (rows[:, None] - block.later + np.arange(-block.length, 0)).astype(np.int32)


def _behind(one: Places | None, other: Places | None) -> Places | None:
    if one is None or other is None:
        return None
    batch = max(len(one), len(other))
    both = [np.broadcast_to(each, (batch, each.shape[1])) for each in (one, other)]
    found: Places = np.concatenate(both, axis=1)
    return found


def latest(plan: Plan, layer: Layer) -> Block | None:
    """The attention of the last ``window`` queries over the rows now held."""
    seen, window = layer.seen, plan.method.scorer.window
    if not window or seen is None:
        return None
    queries = seen.queries[..., -window:, :]
    count = queries.shape[3]
    if plan.rotary is not None and seen.origin is not None and not seen.logits:
        place = next_place(plan, layer) + mx.arange(-count, 0) - mx.array(seen.origin[:, None, -count:])
        batch, heads, group, _, width = queries.shape
        flat = queries.reshape(batch, heads * group, count, width)
        turned = plan.rotary.turn(flat, mx.broadcast_to(place, flat.shape[:3]))
        queries = turned.reshape(queries.shape)
    return Block(
        queries=queries,
        keys=None if seen.logits else placed(plan, layer),
        position=position_of(layer),
        start=layer.end - count,
        scale=seen.scale,
        mask=None if seen.logits else "causal",  # what a query did not see is hidden in its logits
        sinks=seen.sinks,
        elsewhere=layer.heads > 1,
        ordered=behind(layer, count),
        known=seen.known,
    )


def behind(layer: Layer, count: int) -> bool:
    """Whether the rows of the latest ``count`` queries are known to be the last ones, in their order."""
    return layer.each is None and layer.last >= count


def _unturned(plan: Plan, layer: Layer, queries: mx.array, scale: float, later: int) -> tuple[mx.array, Any]:
    """The queries of the forward under way before their rotation, scaled, and the position of the first."""
    length, rotary = queries.shape[3], plan.rotary
    if rotary is None:
        raise ValueError("a scorer that takes notes of queries needs the layer's rotary embedding")
    start = next_place(plan, layer) - later - length
    batch, heads, group, _, width = queries.shape
    flat = (queries.astype(mx.float32) * scale).reshape(batch, heads * group, length, width)
    back = mx.broadcast_to(-(start + mx.arange(length, dtype=mx.int32)), flat.shape[:3])
    return rotary.turn(flat, back).reshape(queries.shape), layer.end - later - length
