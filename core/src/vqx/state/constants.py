"""Arrays that all layers of a prompt's forward ask for alike, made once: each costs its layer launches."""

import functools

import mlx.core as mx

MOST = 2**20
"""Numbers of an array that is held for others that ask for it."""


def counted(batch: int, heads: int, start: int, length: int) -> mx.array:
    """Positions of new rows from ``start`` on, ``[B, H, S]`` int32."""
    if _few(batch, heads, length):
        return _counted(batch, heads, start, length)
    return mx.broadcast_to(mx.arange(start, start + length, dtype=mx.int32), (batch, heads, length))


def alike(shape: tuple[int, int, int], value: float) -> mx.array:
    """One value for every new row, ``[B, H, S]`` float32."""
    return _alike(shape, value) if _few(*shape) else mx.full(shape, value, mx.float32)


def _few(batch: int, heads: int, length: int) -> bool:
    return length >= 16 and batch * heads * length <= MOST  # single tokens would push prompts out


@functools.lru_cache(maxsize=2)
def _counted(batch: int, heads: int, start: int, length: int) -> mx.array:
    place = mx.arange(start, start + length, dtype=mx.int32)
    return _under_way(place + mx.zeros((batch, heads, 1), mx.int32))


@functools.lru_cache(maxsize=2)
def _alike(shape: tuple[int, int, int], value: float) -> mx.array:
    return _under_way(mx.full(shape, value, mx.float32))


def _under_way(array: mx.array) -> mx.array:
    """The array, evaluated by the thread that made it: others could not."""
    mx.async_eval(array)
    return array
