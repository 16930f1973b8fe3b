"""The best rows as a mask: what methods share that fix some rows before they rank the others."""

from typing import Any

import mlx.core as mx
import numpy as np


def library(array: Any) -> Any:
    """``mlx.core`` on the device, NumPy in the replay on the host: the module that an array belongs to."""
    return mx if isinstance(array, mx.array) else np


def top(score: Any, position: Any, keep: int) -> Any:
    """The ``keep`` highest scores, as booleans ``[..., n]``; of equal ones the newest.

    Args:
        score: ``[..., n]``, without NaN.
        position: ``[..., n]``, distinct along n. No sort's stability is relied on.
    """
    n = position.shape[-1]
    if not 0 < keep < n:
        return (position < 0) if keep <= 0 else (position >= 0)
    of = library(score)
    order = of.argsort(position, axis=-1)
    score = of.take_along_axis(score, order, axis=-1)
    threshold = of.sort(score, axis=-1)[..., n - keep : n - keep + 1]
    above, level = score > threshold, score == threshold
    room = keep - above.astype(of.int32).sum(axis=-1, keepdims=True)
    newer = of.cumsum(level[..., ::-1].astype(of.int32), axis=-1)[..., ::-1]
    stay = above | (level & (newer <= room))
    return of.take_along_axis(stay, of.argsort(order, axis=-1), axis=-1)
