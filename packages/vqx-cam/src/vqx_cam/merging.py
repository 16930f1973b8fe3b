"""Values that go, added to the values of the next rows that stay.

All rows of a cut go together: each is merged into rows that stay, none into one that goes, with the value
that it had before the cut. So the order among them does not matter.
"""

import mlx.core as mx
from vqx import Held

TILE = 1024
"""Rows that go, merged at once: bounds the weights held."""


def merged(held: Held, gone: mx.array, *, keep: int, targets: int) -> mx.array:
    """Values once what goes is merged: ``[B, H, n, Dv]`` float32; rows that get nothing keep their bits.

    A row goes in with probability A / (mean A of its targets), where its frozen draw says so, and each of
    the targets gets an equal share of its value. They are the next ``targets`` rows by position among the
    ``keep`` that stay, or as many as there are.
    """
    position, n = held.position, held.position.shape[2]
    order = mx.argsort(position, axis=-1)
    going = mx.take_along_axis(gone, order, axis=-1)
    age = mx.arange(n)
    goers = mx.argsort(mx.where(going, age, age + n), axis=-1)[..., : n - keep]
    older = mx.cumsum(mx.logical_not(going).astype(mx.int32), axis=-1)
    first = mx.take_along_axis(older, goers, axis=-1)  # [B, H, goers], a rank among those that stay
    stayers = mx.argsort(mx.where(going, age + n, age), axis=-1)[..., :keep]
    from_slot, to_slot = (mx.take_along_axis(order, ages, axis=-1) for ages in (goers, stayers))

    attention, draw = held.stats["attention"], held.stats["draw"]
    rank = first[..., None] + mx.arange(targets)  # [B, H, goers, targets]
    there = rank < keep
    of_stayers = mx.take_along_axis(attention, to_slot, axis=-1)
    of_targets = mx.take_along_axis(of_stayers, mx.minimum(rank, keep - 1).flatten(2), axis=-1)
    count = mx.sum(there, axis=-1)
    mean = mx.sum(mx.where(there, of_targets.reshape(rank.shape), 0.0), axis=-1) / mx.maximum(count, 1)
    own, threshold = (mx.take_along_axis(column, from_slot, axis=-1) for column in (attention, draw))
    share = mx.where((count > 0) & (threshold * mean < own), 1 / mx.maximum(count, 1), 0.0)

    values: mx.array = held.values.astype(mx.float32)
    lost = mx.take_along_axis(values, from_slot[..., None], axis=2)
    gained = mx.zeros((*to_slot.shape, values.shape[3]))
    ranks = mx.arange(keep)[:, None]
    for start in range(0, n - keep, TILE):
        nearest = first[..., None, start : start + TILE]
        reached = (ranks >= nearest) & (ranks < nearest + targets)
        weights = mx.where(reached, share[..., None, start : start + TILE], 0.0)  # [B, H, keep, tile]
        gained = gained + weights @ lost[:, :, start : start + TILE]
    return values + mx.put_along_axis(mx.zeros_like(values), to_slot[..., None], gained, axis=2)
