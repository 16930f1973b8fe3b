"""The best rows as a mask: what methods share that fix some rows before they rank the others."""

from typing import Any

import mlx.core as mx
import numpy as np


def library(array: Any) -> Any:
    """``mlx.core`` on the device, NumPy in the replay on the host: the module that an array belongs to."""
    return mx if isinstance(array, mx.array) else np


def top(score: Any, position: Any, keep: Any) -> Any:
    """The ``keep`` highest scores, as booleans ``[..., n]``; of equal ones the newest.

    Args:
        score: ``[..., n]``, without NaN.
        position: ``[..., n]`` from 0 on, distinct along n. No sort's stability is relied on.
        keep: one number, or an array ``[..., 1]`` of them.
    """
    n = position.shape[-1]
    if isinstance(keep, int) and not 0 < keep < n:
        return (position < 0) if keep <= 0 else (position >= 0)
    of = library(score)
    rank = ranks(score, position)
    if isinstance(keep, int):  # a seventh of a sort's time on a CPU
        return rank >= of.partition(rank, n - keep, axis=-1)[..., n - keep : n - keep + 1]
    ordered = of.sort(rank, axis=-1)
    least = of.broadcast_to(of.clip(n - keep, 0, n - 1), (*rank.shape[:-1], 1))
    return (keep > 0) & (rank >= of.take_along_axis(ordered, least, axis=-1))


def ranks(score: Any, position: Any) -> Any:
    """Scores and, among equal ones, positions as one order: distinct numbers ``[..., n]`` uint64.

    The bits of a float, less its sign, are in the order of the floats; below them stands the position.
    """
    of = library(score)
    bits = (score.astype(of.float32) + 0.0).view(of.uint32)  # -0 is 0
    order = bits ^ of.where(bits >> 31, 0xFFFFFFFF, 0x80000000).astype(of.uint32)
    return (order.astype(of.uint64) << 32) | position.astype(of.uint64)
