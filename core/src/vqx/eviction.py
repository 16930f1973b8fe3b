"""Which rows go: the guard, the victim of one eviction, and the survivors of many.

Sinks and recent rows are safe, higher scores stay, ties evict the oldest, NaN counts as the lowest score.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from vqx.scorers import Method

NEVER = 2**31 - 1

LARGEST = float(np.finfo(np.float32).max)
"""What an infinite score counts as: only protected rows stand above it."""


def safe(method: Method, position: Any, newest: int) -> Any:
    """Rows that no score can evict: sinks, the newest ``recent`` and the protected spans, ``[B, H, n]``."""
    safe = (position < method.n_sink) | (position > newest - method.recent)
    if method.floor is not None:  # a row of another head stands beyond the newest, and is no head's to keep
        safe = safe & (position <= newest)
    for first, end in method.spans:
        safe = safe | ((position >= first) & (position < end))
    return safe


def guarded(score: mx.array, protected: mx.array) -> mx.array:
    """Scores with the protected rows on top and NaN at the bottom, ``[B, H, n]`` float32."""
    score = mx.where(mx.isnan(score), -mx.inf, mx.minimum(score.astype(mx.float32), LARGEST))
    return mx.where(protected, mx.inf, score)


def victim(score: mx.array, position: mx.array) -> mx.array:
    """The slot of the lowest score, of the oldest row among equals: ``[B, H, 1]``."""
    lowest = mx.min(score, axis=-1, keepdims=True)
    return mx.argmin(mx.where(score == lowest, position, NEVER), axis=-1, keepdims=True)


def victims(score: mx.array, age: mx.array, count: int) -> mx.array:
    """The slots of the ``count`` lowest scores, of the oldest rows among equals: ``[B, H, count]``."""
    if count == 1:
        return victim(score, age)
    n = score.shape[-1]
    kept = survivors(score, age, n - count)
    slot = mx.broadcast_to(mx.arange(n, dtype=mx.int32), score.shape)
    return mx.argsort(mx.put_along_axis(slot, kept, mx.array(n, mx.int32), axis=-1), axis=-1)[..., :count]


def survivors(score: mx.array, position: mx.array, keep: int) -> mx.array:
    """The slots of the ``keep`` highest scores, oldest row first: ``[B, H, keep]``.

    Every sort is over distinct values or reads values only, so the choice does not depend on whether
    a backend's sort is stable.
    """
    n = score.shape[-1]
    order = mx.argsort(position, axis=-1)
    score = mx.take_along_axis(score, order, axis=-1)
    threshold = mx.sort(score, axis=-1)[..., n - keep : n - keep + 1]
    above, level = score > threshold, score == threshold
    room = keep - mx.sum(above, axis=-1, keepdims=True)
    newer = mx.cumsum(level.astype(mx.int32), axis=-1, reverse=True)
    stay = above | (level & (newer <= room))
    age = mx.arange(n, dtype=mx.int32)
    chosen = mx.argsort(mx.where(stay, age, age + n), axis=-1)[..., :keep]
    return mx.take_along_axis(order, chosen, axis=-1)
