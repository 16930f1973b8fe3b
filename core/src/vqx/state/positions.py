"""Compact positions: turn each key once, from the key as received, by the model's own rotary module.

Turning again and again drifts: in bfloat16 by 79 % after 2,048 single steps, against 0.24 % for one turn.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx

Rope = Callable[..., mx.array]
"""A model's rotary module: ``rope(x [..., T, D], offset=int or array)`` -> rotated x."""


PROBES = ((3, 5), (700, -650), (9000, -8999), (4000, 2000))
"""Positions and turns at which a module is checked."""


class Rotary(NamedTuple):
    """A model's rotary embedding, seen as a one-parameter group of linear maps times a scale."""

    rope: Rope
    scale: mx.array  # [D] what the module multiplies with apart from turning (yarn, su)
    mirror: mx.array  # [D] of +1 and -1: mirrored before and after, a turn goes the other way

    def turn(self, keys: mx.array, delta: mx.array) -> mx.array:
        """Move keys ``[B, H, n, D]`` by ``delta`` ``[B, H, n]`` positions, in float32."""
        batch, heads, n, width = keys.shape
        # on CUDA, mx.fast.rope turns by wrong angles where one of several offsets is negative
        mirror = mx.where(delta[..., None] < 0, self.mirror, 1.0)
        each = (keys.astype(mx.float32) / self.scale * mirror).reshape(batch * heads * n, 1, 1, width)
        turned = self.rope(each, offset=mx.abs(delta).reshape(-1).astype(mx.int32))
        return (turned.reshape(keys.shape) * mirror).astype(keys.dtype)

    def turn_back(self, keys: mx.array, steps: mx.array) -> mx.array:
        """Move keys ``[B, H, n, D]`` back by ``steps`` ``[B, H, n]`` positions, none negative, in float32.

        What ``turn`` gives for ``-steps``, in half the operations.
        """
        each = keys.astype(mx.float32) / (self.scale * self.mirror)
        turned = self.rope(each.reshape(steps.size, 1, 1, -1), offset=steps.reshape(-1))
        return (turned.reshape(keys.shape) * self.mirror).astype(keys.dtype)

    def averaged(self, start: Any, count: int) -> mx.array:
        """The mean of the turns by ``start`` to ``start + count - 1``, ``[D, D]``: x times this is x turned.

        ``start`` is a number, or one for each sequence ``[B, 1, 1]``: then ``[B, D, D]``.

        A turn mixes the two channels of a pair alone, so the images of two vectors, all first channels and
        all second ones, hold every number of the matrix.
        """
        width = self.mirror.shape[0]
        mixed = self.turn(mx.eye(width)[None, None], mx.ones((1, 1, width), mx.int32))[0, 0] != 0
        halves = mx.stack([self.mirror > 0, self.mirror < 0]).astype(mx.float32)[None, :, None]
        places = start + mx.arange(count, dtype=mx.int32)
        batch = places.shape[0] if places.ndim > 1 else 1
        turned = self.turn(
            mx.broadcast_to(halves, (batch, 2, count, width)), mx.broadcast_to(places, (batch, 2, count))
        )
        halfway = mx.mean(turned, axis=2)[:, :, None]
        found = mx.where(mixed, mx.where(self.mirror[:, None] > 0, halfway[:, 0], halfway[:, 1]), 0.0)
        return found if places.ndim > 1 else found[0]


def rotary_of(rope: Rope, width: int) -> Rotary:
    """Read what a rotary module does, and check that it can turn a key again.

    Args:
        rope: the model's own module.
        width: head dimension D.

    Raises:
        ValueError: where turning by a and then by b is not turning by a + b.
    """
    try:
        rotary = Rotary(rope, *_scale_and_mirror(rope, width))
        wrong = next((turn for turn in PROBES if not _turns(rotary, width, *turn)), None)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"positions='compact' cannot be right for {type(rope).__name__}: it does not take an offset for"
            f" each key ({error}); use positions='absolute'"
        ) from error
    if wrong is not None:
        start, delta = wrong
        raise ValueError(
            f"positions='compact' cannot be right for {type(rope).__name__}: turning a key from"
            f" position {start} by {delta} does not give the key at {start + delta};"
            " use positions='absolute'"
        )
    return rotary


def _scale_and_mirror(rope: Rope, width: int) -> tuple[mx.array, mx.array]:
    """What the module does at 0, and which channel of each turned pair comes second."""
    axes = mx.eye(width)[:, None, None]
    scale = mx.diag(rope(axes, offset=0)[:, 0, 0])
    mixed = mx.abs(rope(axes, offset=1)[:, 0, 0]) * (1 - mx.eye(width))
    second = (mx.max(mixed, axis=1) > 0) & (mx.argmax(mixed, axis=1) < mx.arange(width))
    return scale, mx.where(second, -1.0, 1.0)


def _turns(rotary: Rotary, width: int, start: int, delta: int) -> bool:
    """Whether turning by ``start`` and then by ``delta`` is turning by their sum, for two keys at once."""
    probe = mx.random.normal((2, 1, 1, width), key=mx.random.key(0))
    once = rotary.rope(probe, offset=start + delta).reshape(1, 1, 2, width)
    there = rotary.rope(probe, offset=start).reshape(1, 1, 2, width)
    twice = rotary.turn(there, mx.full((1, 1, 2), delta, mx.int32))
    return bool(mx.all(mx.abs(once - twice) <= 2e-3 * mx.abs(once).max()).item())
