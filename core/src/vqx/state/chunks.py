"""What a chunk of a prompt asks when it begins, settled for many layers at once where they are made alike.

To ask a GPU for a launch takes its host longer than the GPU works on it: layers are more sequences of one
layer, and a chunk asks once for all of them which rows stay, and once for these rows. Layers that differ, and
devices without such kernels, go by ``vqx.state.settling``, which this equals.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from vqx import kernels
from vqx.state import constants
from vqx.state.cuts import AT_ONCE
from vqx.state.layer import Layer, Plan
from vqx.state.queries import behind
from vqx.state.rows import Rows, capacity_for, pick, written

TOGETHER = 2**27
"""Bytes of rows that are settled at once: they are held beside those that stay of them, with their room."""

MOST = 64
"""Layers of a launch: it has the addresses of old and of new keys and values (``vqx_kernels.ARRAYS``)."""


class Ready(NamedTuple):
    """A layer that was settled before its own new rows come."""

    before: Layer
    layer: Layer  # as it is with the rows that come, whose keys and values are not written yet
    length: int  # how many come


class Chunks:
    """The layers of one list of caches that were settled for the forward under way, and have not read it."""

    def __init__(self) -> None:
        self._ready: dict[int, Ready] = {}
        self._apart: Any = None  # the method that no kernel served so

    @property
    def nbytes(self) -> int:
        """Bytes of the old rows of these layers."""
        return sum(ready.before.rows.nbytes for ready in self._ready.values())

    def clear(self) -> None:
        self._ready = {}

    def settled(self, cache: Any) -> bool:
        """Whether its layer is one of them."""
        return cache.number in self._ready

    def admitted(self, cache: Any, keys: mx.array, values: mx.array) -> Layer | None:
        """As ``vqx.state.arrival.admit`` of a layer that was settled; None: it was not."""
        ready, length = self._ready.pop(cache.number, None), keys.shape[2]
        if ready is None or ready.before is not cache.as_it_is or ready.length != length:
            return None
        rows = ready.layer.rows
        at = rows.length - length
        keys, values = written(rows.keys, keys, at), written(rows.values, values, at)
        return ready.layer._replace(rows=rows._replace(keys=keys, values=values))

    def settle(self, cache: Any, caches: Sequence[Any], length: int) -> None:
        """Settle the layers from this cache's on that can be, before ``length`` rows come to each."""
        some = self._together(caches[caches.index(cache) :])
        if not some:
            return
        plans, layers = [each.plan for each in some], [each.as_it_is for each in some]
        settled = _settled(plans, layers, length)
        if settled is None:
            self._apart = cache.plan.method
            return
        both = zip(some, layers, settled, strict=True)
        self._ready = {each.number: Ready(before, after, length) for each, before, after in both}

    def _together(self, caches: Sequence[Any]) -> Sequence[Any]:
        """The first of these caches, as many as are settled at once; none where each goes by itself."""
        first = caches[0]
        plan, layer = first.plan, first.as_it_is
        if plan.method is self._apart or layer is None or not _serves(plan, layer):
            return []
        some, shape = [first], _shape(layer)
        for other in caches[1:]:
            held = other.as_it_is
            if held is None or not _alike(plan, other.plan, layer) or _shape(held) != shape:
                break
            some.append(other)
        parts = max(-(-len(some) * layer.rows.nbytes // TOGETHER), -(-len(some) // MOST))
        some = some[: -(-len(some) // parts)]
        return some if len(some) > 1 else []


def _serves(plan: Plan, layer: Layer) -> bool:
    """Whether a layer may be one of those that are settled together."""
    method, seen = plan.method, layer.seen
    if layer.last < 2 or plan.replays(layer) or not plan.due(layer) or plan.options.undo:
        return False
    if layer.heads > 1 or layer.each is not None or layer.rows.bare or layer.waiting is not None:
        return False
    if plan.compact or plan.packing is not None or plan.across is not None or layer.notes:
        return False
    if method.floor is not None or method.merge is not None or method.share is not None:
        return False
    if seen is not None and (seen.logits or seen.sinks is not None or seen.known is not None):
        return False
    if method.scorer.window and seen is None and layer.score is None:
        return False
    return kernels.target() in ("cuda", "host")


def _alike(plan: Plan, other: Plan, layer: Layer) -> bool:
    """Whether two layers rank alike; where scores are held, methods that make them may differ."""
    if plan.options != other.options:
        return False
    if layer.score is None or plan.method is other.method:
        return plan.method is other.method
    return other.method._replace(scorer=plan.method.scorer) == plan.method


def _shape(layer: Layer) -> Any:
    """What has to be the same of all layers."""
    rows, seen = layer.rows, layer.seen
    asked = None if seen is None else (seen.queries.shape, seen.queries.dtype, seen.scale, seen.sinks)
    columns = tuple((name, column.shape, column.dtype) for name, column in rows.columns.items())
    own = (rows.keys.shape, rows.keys.dtype, rows.values.shape, rows.values.dtype, rows.position.shape)
    score = None if layer.score is None else layer.score.shape
    counts = layer.tokens_seen, layer.generated, layer.last, layer.heads, rows.bare
    return (*own, columns, asked, score, *counts)


def _settled(plans: Sequence[Plan], layers: Sequence[Layer], length: int) -> list[Layer] | None:
    """Each of several layers made alike with what stays of it, and room for ``length`` rows that come.

    None: no kernel serves the method so, or it takes the rows themselves to tell what they start with.
    """
    plan, first, number = plans[0], layers[0], len(layers)
    batch, heads, _ = first.rows.position.shape
    start, shape = first.tokens_seen, (number * batch, heads, length)
    new = _columns(plans, layers, shape, start)
    stay = None if new is None else _staying(plan, layers)
    if new is None or stay is None:
        return None
    come = mx.broadcast_to(mx.arange(start, start + length, dtype=mx.int32), shape)
    position = mx.split(mx.concatenate([stay.position, come], axis=2), number)
    columns = {
        name: mx.split(mx.concatenate([column, new[name]], axis=2), number)
        for name, column in stay.columns.items()
    }
    picked = _picked(layers, stay.slots, max(length, plan.options.interval))
    found = []
    for place, (layer, (keys, values)) in enumerate(zip(layers, picked, strict=True)):
        own = {name: column[place] for name, column in columns.items()}
        found.append(
            layer._replace(
                rows=Rows(keys, values, position[place], own),
                tokens_seen=start + length,
                last=length,
                generated=layer.generated + 1 if length == 1 else 0,
                evicted=True,
                score=None,
                gone=None,
            )
        )
    return found


def _columns(
    plans: Sequence[Plan], layers: Sequence[Layer], shape: tuple[int, int, int], start: int
) -> dict[str, mx.array] | None:
    """What new rows of all layers start with, each ``shape`` ``[L * B, H, S]``; None: that takes the rows."""
    width, scorer = layers[0].rows.keys.shape[3], plans[0].method.scorer
    apart = any(plan.method.scorer.init is not scorer.init for plan in plans)
    own = (shape[0] // len(layers), *shape[1:]) if apart else shape
    each, names = [], layers[0].rows.columns.keys()
    for plan in plans if apart else plans[:1]:
        new = constants.columns(plan.method.scorer.init, (*own, width), start)
        if new is None:
            new = constants.told(plan.method.scorer.init, (*own, width), start)
        if new is None:
            return None
        each.append(new)
    if any(new.keys() != names or any(column.shape != own for column in new.values()) for new in each):
        return None
    return {name: kernels.joined([new[name] for new in each]) for name in names} if apart else dict(each[0])


def _staying(plan: Plan, layers: Sequence[Layer]) -> kernels.Kept | None:
    """The rows that stay of each layer, ``[L * B, H, budget]``; None: no kernel serves the method so."""
    method, first = plan.method, layers[0]
    keep, window, end = method.budget, method.scorer.window, first.tokens_seen
    position = kernels.joined([layer.rows.position for layer in layers])
    names = first.rows.columns
    columns = {name: kernels.joined([layer.rows.columns[name] for layer in layers]) for name in names}
    scores = [layer.score for layer in layers if layer.score is not None]
    if scores:
        score = mx.broadcast_to(kernels.joined(scores), position.shape)
        return kernels.kept(method, score, position, columns, keep, end=end, in_place=False)
    seen = [layer.seen for layer in layers if layer.seen is not None and window]
    queries = [each.queries[..., -window:, :] for each in seen]
    queries = [each.reshape(each.shape[0], -1, *each.shape[3:]) for each in queries]
    asked = queries, [layer.rows.keys for layer in layers], position
    start, scale = end - (queries[0].shape[2] if queries else 1), seen[0].scale if seen else 1.0
    own = bool(queries) and behind(first, queries[0].shape[2])
    return kernels.settled(method, columns, kernels.Layers(*asked, start, scale, 0, own), keep, AT_ONCE)


def _picked(layers: Sequence[Layer], slots: mx.array, room: int) -> list[tuple[mx.array, mx.array]]:
    """Keys and values of each layer's rows at ``slots`` ``[L * B, H, m]``, with ``room`` rows more."""
    held, keep, number = [layer.rows for layer in layers], slots.shape[2], len(layers)
    capacity = capacity_for(keep + room, held[0].keys)
    found = kernels.picked([rows.keys for rows in held], [rows.values for rows in held], slots, capacity)
    if found is not None:
        return [*zip(*found, strict=True)]
    each = [pick(rows, own, room) for rows, own in zip(held, mx.split(slots, number), strict=True)]
    return [(rows.keys, rows.values) for rows in each]
