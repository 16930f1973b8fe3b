"""Which rotary module turns which layer's keys: found by name, then checked against the model itself."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache

from vqx.host.layers import own_caches, ropes_of
from vqx.state.positions import NEAR, Rotary, rotary_of

FAR = 37


class _Noting:
    """A cache that notes the rows of one token, as they come at an offset."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.keys = self.values = mx.zeros((0,))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys, self.values = keys, values
        return keys, values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        return self.keys, self.values

    def make_mask(self, *_args: Any, **_options: Any) -> None:
        return None


Notes = dict[int, _Noting]


def rotaries(model: nn.Module, evicting: list[int], *, compact: bool) -> list[Rotary]:
    """The rotary embedding of every evicting layer, for scores that turn keys and for compact positions.

    One token is run at offset 0 and at another offset: its keys tell whether a layer turns them at all,
    and whether the module found turns them likewise; once more with the offset of the evicting caches
    alone, to see that a layer asks its own cache where it stands.

    Args:
        evicting: the numbers of the caches that will evict.
        compact: whether rows will move, so that nothing but the keys may depend on where they stand.

    Raises:
        ValueError: a layer whose rows cannot be turned as the model turns them.
    """
    near, far = (_noted(model, evicting, offset, offset) for offset in (0, FAR))
    if compact:
        alone = _noted(model, evicting, FAR, 0)
        for number in evicting:
            _check_moves(model, number, near[number], far[number], alone[number])
    found: list[Rotary] = []
    for number in evicting:
        made = _rotary(model, number, near[number].keys, far[number].keys)
        found.append(next((other for other in found if _likewise(made, other)), made))
    return found


def _likewise(one: Rotary, other: Rotary) -> bool:
    """Whether two modules turn alike, bit by bit: layers that share one share its tables."""
    if one.mirror.shape != other.mirror.shape:
        return False
    steps = mx.arange(2 * NEAR, dtype=mx.int32)[None, None]
    pairs = zip(*((each.scale, each.mirror, each.images(steps)) for each in (one, other)), strict=True)
    return all(mx.array_equal(a, b) for a, b in pairs)


def _noted(model: nn.Module, evicting: list[int], offset: int, others: int) -> Notes:
    notes, caches = {}, own_caches(model)
    for number, cache in enumerate(caches):
        if number in evicting:
            notes[number] = caches[number] = _Noting(offset)
        elif type(cache) in (KVCache, RotatingKVCache):
            caches[number] = _Noting(others)
    model(mx.array([[1]]), cache=caches)
    return notes


def _check_moves(model: nn.Module, number: int, near: _Noting, far: _Noting, alone: _Noting) -> None:
    name = f"layer {number} of {type(model).__module__}"
    if not _same(far.keys, alone.keys):
        raise ValueError(
            f"positions='compact': {name} asks another layer's cache where it stands;"
            " use positions='absolute'"
        )
    if not _same(near.values, far.values):
        raise ValueError(
            f"positions='compact': {name} makes values that change with their position, and only keys are"
            " turned; use positions='absolute'"
        )


def _rotary(model: nn.Module, number: int, near: mx.array, far: mx.array) -> Rotary:
    width = near.shape[-1]
    if mx.array_equal(near, far):
        return rotary_of(lambda x, offset: x, width)
    refused: ValueError | None = None
    for rope in ropes_of(model, number):
        try:
            rotary = rotary_of(rope, width)
        except ValueError as error:
            refused = error
            continue
        if _same(rotary.turn(near, mx.full(near.shape[:3], FAR, mx.int32)), far):
            return rotary
    raise refused or ValueError(
        f"no rotary module was found that turns the keys of layer {number} of {type(model).__module__} as the"
        " model does; use positions='absolute', and a method that turns no keys"
    )


def _same(one: mx.array, other: mx.array) -> bool:
    """But for rounding: a layer's input may depend on positions by as much."""
    tolerance = (1e-3 if one.dtype == mx.float32 else 2e-2) * mx.abs(one).max()
    return bool(mx.all(mx.abs(one - other) <= tolerance).item())
