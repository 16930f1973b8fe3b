"""The sequences of a batch while they differ: parts of one history each, side by side for attention alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx

from vqx.state import decoding, joined
from vqx.state.arrival import admit, caught_up
from vqx.state.attention import Known
from vqx.state.layer import Layer, Plan, attended
from vqx.state.members import Own
from vqx.state.queries import stand_ins, wait, watch
from vqx.state.settling import settle


class Part(NamedTuple):
    """Sequences of a batch with one layer; those without a token have none."""

    members: tuple[int, ...]
    layer: Layer | None = None
    new: int = 0
    """Of the last forward's tokens, those that are its own."""
    skip: int = 0
    """Padding before them."""

    def own(self, array: mx.array) -> mx.array:
        """Of a batch's ``[B, H, S, ...]`` what is the part's."""
        if self.new < array.shape[2]:
            array = array[:, :, self.skip : self.skip + self.new]
        return array if self.members == (*range(array.shape[0]),) else array[mx.array(self.members)]


def split(parts: Sequence[Part], own: Own, plans: Sequence[Plan]) -> Iterator[Part]:
    """Parts of sequences with one history, one plan (of each of the batch), and as many tokens to read."""
    for part in parts:
        kinds: dict[Any, list[int]] = {}
        each = None if part.layer is None else joined.each_of(part.layer)
        for i, member in enumerate(part.members):
            history = None if each is None else tuple(numbers[i] for numbers in each)
            method = plans[member].method
            kinds.setdefault((history, own[member], method.budget, method.share is None), []).append(i)
        for (_, (skip, new), *_), those in kinds.items():
            layer = None if part.layer is None else joined.take(part.layer, those)
            yield Part(tuple(part.members[i] for i in those), layer, new, skip)


def of_each(parts: Sequence[Part], of: Callable[[Part], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Something of each sequence, in the batch's order."""
    found: dict[int, Any] = {}
    for part in parts:
        found.update(zip(part.members, of(part), strict=True))
    return tuple(found[member] for member in range(len(found)))


def of_layers(parts: Sequence[Part], of: Callable[[Layer], tuple[int, ...]]) -> tuple[int, ...]:
    """A number of each sequence; 0 of those without a token."""
    return of_each(parts, lambda part: (0,) * len(part.members) if part.layer is None else of(part.layer))


def rows_left(parts: Sequence[Part], plans: Sequence[Plan]) -> tuple[int, ...]:
    """Of each sequence the rows that remain for the next forward, by its own plan."""

    def of(part: Part) -> tuple[int, ...]:
        if part.layer is None:
            return (0,) * len(part.members)
        return decoding.rows_after([plans[member] for member in part.members], part.layer)

    return of_each(parts, of)


def together(parts: Sequence[Part], plans: Sequence[Plan], keys: mx.array, values: mx.array) -> Part:
    """All sequences as one layer, with one token more of each: ``[B, H, 1, D]`` and ``[B, H, 1, Dv]``."""
    apart: list[Part] = []
    prompt = [False] * len(plans)
    for part in parts:
        if part.layer is None or part.layer.last == 1:
            apart.append(part)
            continue
        for each in split([part], ((0, 1),) * len(plans), plans):
            plan = plans[each.members[0]]
            layer, _ = settle(plan, cast(Layer, each.layer), room=max(2, plan.options.interval))
            apart.append(each._replace(layer=layer))
        for member in part.members:
            prompt[member] = True
    layers = [part.layer for part in apart if part.layer is not None]
    if len(layers) > 1 or len(apart[0].members) < len(plans):
        layers = [caught_up(plans[0], layer) for layer in layers]
    layer = layers[0] if len(layers) == 1 else joined.join(plans[0], layers)
    order = [member for part in apart for member in part.members]
    layer = joined.take(layer, sorted(range(len(order)), key=order.__getitem__))
    return Part((*range(len(plans)),), decoding.step(plans, layer, keys, values, prompt), 1)


def side_by_side(plan: Plan, parts: Sequence[Part], length: int) -> tuple[mx.array, mx.array]:
    """Keys and values of all parts: the rows held before, padded to the longest, then ``length`` tokens."""
    both = [None if part.layer is None else attended(plan, part.layer) for part in parts]
    keys, values = (beside(parts, length, [each and each[side] for each in both]) for side in (0, 1))
    return keys, values


def in_lanes(parts: Sequence[Part]) -> int:
    """How many heads share one lane, in some part at least; 1: none do."""
    return max((part.layer.heads for part in parts if part.layer is not None), default=1)


def beside(parts: Sequence[Part], length: int, each: Sequence[mx.array | None], fill: float = 0) -> mx.array:
    """Of each part's ``[b, H, n, ...]`` one array for all; of lanes, where the heads of some share one."""
    heads = in_lanes(parts)
    some = next(array for array in each if array is not None)
    none = some[:1, : 1 if heads > 1 else some.shape[1], :0]
    both = []
    for part, array in zip(parts, each, strict=True):
        if part.layer is None or array is None:
            nothing = mx.broadcast_to(none, (len(part.members), *none.shape[1:]))
            both.append((nothing, nothing))
            continue
        held = array.shape[2] - part.new * part.layer.heads
        old, new = array[:, :, :held], array[:, :, held:]
        if part.layer.heads < heads:
            old, new = (rows.reshape(len(part.members), 1, -1, *rows.shape[3:]) for rows in (old, new))
        both.append((old, new))
    kept, beside = max(old.shape[2] for old, _ in both), []
    for part, (old, new) in zip(parts, both, strict=True):
        skip = part.skip if heads == 1 else 0
        before = _padded(old, 0, kept - old.shape[2], fill)
        behind = _padded(new, skip, length * heads - skip - new.shape[2], fill)
        beside.append(mx.concatenate([before, behind], axis=2))
    whole = mx.concatenate(beside, axis=0)
    order = [member for part in parts for member in part.members]
    if order == sorted(order):
        return whole
    return whole[mx.array(sorted(range(len(order)), key=order.__getitem__))]


def read(plan: Plan, part: Part, keys: mx.array, values: mx.array) -> Part:
    """The part with its own of the batch's new rows, ``[B, H, S, D]`` and ``[B, H, S, Dv]``."""
    if not part.new:
        return part
    layer = admit(plan, part.layer, part.own(keys), part.own(values))
    return part._replace(layer=caught_up(plan, layer))


def stood_in(plan: Plan, part: Part, keys: mx.array) -> Part:
    """The part when it saw the batch's new keys ``[B, H, S, D]`` in the place of its queries."""
    if part.layer is None or not part.new:
        return part
    layer, queries = stand_ins(plan, part.layer, part.own(keys))
    mask = joined.padding(joined.each_of(layer).rows) if layer.each is not None else "causal"
    watched = watch(plan, layer, queries[:, :, None], scale=keys.shape[-1] ** -0.5, mask=mask)
    return part._replace(layer=watched)


def at_rest(plans: Sequence[Plan], parts: Sequence[Part]) -> list[Part]:
    """The parts with nothing left for later."""
    return [
        part
        if part.layer is None or not (part.layer.rows.bare or part.layer.waiting)
        else part._replace(layer=caught_up(plans[part.members[0]], part.layer))
        for part in parts
    ]


class Shown(NamedTuple):
    """What attention showed of a batch's forward."""

    queries: mx.array  # [B, H * G, S, D]
    keys: mx.array  # [B, H, n, D], of all parts side by side
    scale: float
    mask: Any
    sinks: mx.array | None
    logits: bool
    """Whether they cannot be repeated from the rows held."""
    kept: int | None
    """The longest part's rows before the forward's own; None where one layer holds all."""
    mass: mx.array | None = None
    """What a token's attention gave to each row, ``[B, H, n]``."""


def watched(plan: Plan, part: Part, shown: Shown) -> Part:
    """The part when it saw its own of the queries."""
    layer, mask, keys = part.layer, shown.mask, shown.keys if shown.kept is None else None
    if layer is None or not part.new:
        return part
    if shown.logits and shown.kept is not None:
        members = mx.array(part.members)
        keys = seen_by(part, shown.keys[members].swapaxes(-1, -2), shown.kept).swapaxes(-1, -2)
        if isinstance(mask, mx.array):
            whole = (shown.queries.shape[0], *mask.shape[1:])
            rows = part.own(mx.broadcast_to(mask, whole)) if mask.ndim == 4 else mask
            mask = seen_by(part, rows, shown.kept)
    waits = shown.kept is None and not shown.logits and plan.defers_apart and layer.heads == 1
    if waits and (layer.waiting is None or layer.waiting.sinks is shown.sinks):
        return part._replace(layer=wait(plan, layer, shown.queries, shown.scale, shown.sinks, shown.mass))
    layer = caught_up(plan, layer)
    known = None if shown.mass is None else Known(shown.mass)
    asked = part.own(shown.queries)
    batch, _, length, width = asked.shape
    asked = asked.reshape(batch, layer.rows.keys.shape[1] * layer.heads, -1, length, width)
    seen = watch(
        plan,
        layer,
        asked,
        scale=shown.scale,
        mask=mask,
        sinks=shown.sinks,
        keys=keys,
        logits=shown.logits,
        known=known,
    )
    return part._replace(layer=seen)


def seen_by(part: Part, array: mx.array, kept: int) -> mx.array:
    """Of ``[..., n]`` over the rows side by side the part's own: ``kept`` is the longest's rows before."""
    if part.layer is None:
        return array
    first = kept + part.skip
    own = mx.concatenate([mx.arange(part.layer.size - part.new), mx.arange(first, first + part.new)])
    return mx.take(array, own, axis=-1)


def _padded(array: mx.array, before: int, behind: int, fill: float) -> mx.array:
    room = [(0, 0), (0, 0), (before, behind), *[(0, 0)] * (array.ndim - 3)]
    return mx.pad(array, room, constant_values=fill) if before or behind else array
