"""Values that go, added to the values of their neighbours that stay.

All rows of a cut go together, with the values that they had before it, and none is merged into one that goes
too: the order among them does not matter, and of a long run of rows that go only the end, whose neighbours
stay, is merged. (Merged into the next rows that stay, however far, the run would bury them: the text breaks.)
"""

import mlx.core as mx
from vqx import Held

TILE = 1024
"""Rows that go, merged at once: bounds the weights held."""


def merged(held: Held, gone: mx.array, *, keep: int, targets: int) -> mx.array:
    """Values once what goes is merged: ``[B, H, n, Dv]`` float32; rows that get nothing keep their bits.

    The targets of a row are the next ``targets`` rows held, by position, or as many as there are. It is
    merged with probability A / (mean A of its targets), where its frozen draw says so; each target that is
    not among those ``gone`` ``[B, H, n]`` (all but ``keep``) then gets an equal share of its value.
    """
    order = mx.argsort(held.position, axis=-1)
    attention, draw, going = (
        mx.take_along_axis(column, order, axis=-1)
        for column in (held.stats["attention"], held.stats["draw"], gone)
    )
    n = order.shape[2]
    age = mx.arange(n)
    goers = mx.argsort(mx.where(going, age, age + n), axis=-1)[..., : n - keep]
    reach = goers[..., None] + 1 + mx.arange(targets)  # [B, H, goers, targets]
    there = reach < n
    near = mx.take_along_axis(attention, mx.minimum(reach, n - 1).flatten(2), axis=-1).reshape(reach.shape)
    count = mx.sum(there, axis=-1)
    mean = mx.sum(mx.where(there, near, 0.0), axis=-1) / mx.maximum(count, 1)
    own, threshold = (mx.take_along_axis(column, goers, axis=-1) for column in (attention, draw))
    share = mx.where((count > 0) & (threshold * mean < own), 1 / mx.maximum(count, 1), 0.0)

    values: mx.array = held.values.astype(mx.float32)
    lost = mx.take_along_axis(values, mx.take_along_axis(order, goers, axis=-1)[..., None], axis=2)
    gained = mx.zeros_like(values)
    for start in range(0, n - keep, TILE):
        tile = slice(start, start + TILE)
        distance = age[:, None] - goers[..., None, tile]
        weights = mx.where((distance > 0) & (distance <= targets), share[..., None, tile], 0.0)
        gained = gained + weights @ lost[:, :, tile]
    gained = mx.where(going[..., None], 0.0, gained)
    return values + mx.take_along_axis(gained, mx.argsort(order, axis=-1)[..., None], axis=2)
