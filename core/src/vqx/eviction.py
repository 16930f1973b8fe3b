"""Which rows go: the guard, the victim of one eviction, and the survivors of many.

Sinks and recent rows are safe, higher scores stay, ties evict the oldest, NaN counts as the lowest score.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from vqx import kernels
from vqx.ranking import top
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
    found = kernels.lowest(score, position)
    if found is not None:
        return found
    lowest = mx.min(score, axis=-1, keepdims=True)
    return mx.argmin(mx.where(score == lowest, position, NEVER), axis=-1, keepdims=True)


def victims(score: mx.array, age: mx.array, count: int) -> mx.array:
    """The slots of the ``count`` lowest scores, of the oldest rows among equals: ``[B, H, count]``."""
    if count == 1:
        return victim(score, age)
    n = score.shape[-1]
    slot = mx.arange(n, dtype=mx.int32)
    stay = top(score, age, n - count)
    return mx.argsort(mx.where(stay, slot + n, slot), axis=-1)[..., :count]


def survivors(stay: mx.array, position: mx.array, keep: int) -> mx.array:
    """The slots of the ``keep`` rows that stay, oldest row first: ``[B, H, keep]``."""
    return mx.argsort(mx.where(stay, position, NEVER), axis=-1)[..., :keep]


def freed(stay: mx.array, keep: int) -> mx.array:
    """Where the rows behind the first ``keep`` go, so that those that stay stand first: ``[B, H, n - keep]``.

    Each that stays names the slot of one that goes, the others their own; all other rows stay in place.
    """
    n = stay.shape[-1]
    own = mx.arange(keep, n, dtype=mx.int32)
    late = stay[..., keep:]
    slot = mx.arange(keep, dtype=mx.int32)
    free = mx.sort(mx.where(stay[..., :keep], n, slot), axis=-1)[..., : n - keep]
    number = mx.cumsum(late.astype(mx.int32), axis=-1) - late
    return mx.where(late, mx.take_along_axis(free, number, axis=-1), own)
