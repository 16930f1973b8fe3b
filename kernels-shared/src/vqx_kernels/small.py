"""Small arrays that launches ask for again and again, made once."""

import functools
from typing import NamedTuple

import mlx.core as mx


class Guard(NamedTuple):
    """Rows that no score can evict."""

    n_sink: int = 0
    recent: int = 0
    spans: tuple[tuple[int, int], ...] = ()


def starts(start: int | mx.array, batch: int) -> mx.array:
    """A position for each sequence, ``[B]`` int32: one array for all layers of a forward."""
    return start if isinstance(start, mx.array) else _starts(start, batch)


@functools.lru_cache(maxsize=64)
def _starts(start: int, batch: int) -> mx.array:
    return mx.array([start] * batch, mx.int32)


@functools.lru_cache(maxsize=256)
def floats(numbers: tuple[float, ...]) -> mx.array:
    return mx.array(numbers, mx.float32)


@functools.lru_cache(maxsize=256)
def shares(length: int, decay: float, mean: bool) -> mx.array:
    """What each query counts."""
    return mx.array([1 / length if mean else decay ** (length - 1 - s) for s in range(length)], mx.float32)


@functools.lru_cache(maxsize=256)
def sizes(n: int, old: int, guard: Guard, length: int = 1, rows: int = 0, capacity: int = 0) -> mx.array:
    """Of several layers also the rows (batch times heads) and the capacity of one."""
    spans = [place for span in guard.spans for place in span]
    return mx.array(
        [n, old, guard.n_sink, guard.recent, len(guard.spans), length, rows, capacity, *spans], mx.int32
    )
