"""Which rotary module turns which layer's keys: found by name, then checked against the model itself."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from vqx.positions import Rotary, rotary_of

FAR = 37


class _Noting:
    """A cache that notes the keys of one token, as they come at an offset."""

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


def rotaries(model: nn.Module, caches: tuple[list[Any], list[Any]], evicting: list[int]) -> list[Rotary]:
    """The rotary embedding of every evicting layer, for compact positions.

    One token is run at offset 0 and at another offset: its keys tell whether a layer turns them at all,
    and whether the module found turns them likewise.

    Args:
        caches: two fresh lists of the model's own caches.
        evicting: the numbers of the caches that will evict.

    Raises:
        ValueError: a layer whose keys cannot be turned as the model turns them.
    """
    near, far = (_noted(model, own, evicting, offset) for own, offset in zip(caches, (0, FAR), strict=True))
    return [_rotary(model, number, near[number], far[number]) for number in evicting]


def _noted(model: nn.Module, caches: list[Any], evicting: list[int], offset: int) -> dict[int, mx.array]:
    noting = {number: _Noting(offset) for number in evicting}
    model(mx.array([[1]]), cache=[noting.get(number, cache) for number, cache in enumerate(caches)])
    return {number: cache.keys for number, cache in noting.items()}


def _rotary(model: nn.Module, number: int, near: mx.array, far: mx.array) -> Rotary:
    width = near.shape[-1]
    tolerance = (1e-3 if near.dtype == mx.float32 else 2e-2) * mx.abs(near).max()
    if mx.array_equal(near, far):
        return rotary_of(lambda x, offset: x, width)
    rope = rope_of(model, number)
    if rope is not None:
        rotary = rotary_of(rope, width)
        turned = rotary.turn(near, mx.full(near.shape[:3], FAR, mx.int32))
        if mx.all(mx.abs(turned - far) <= tolerance):
            return rotary
    raise ValueError(
        f"positions='compact': no rotary module was found that turns the keys of layer {number} of"
        f" {type(model).__module__} as the model does; use positions='absolute'"
    )


def rope_of(model: nn.Module, number: int) -> Any:
    """The rotary module of a layer's attention; None where none is found."""
    layers = getattr(model, "layers", [])
    for _, part in layers[number].named_modules() if number < len(layers) else ():
        rope = getattr(part, "rope", None)
        if callable(rope) and hasattr(part, "k_proj"):
            return rope
    return None
