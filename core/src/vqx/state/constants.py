"""Arrays that all layers of a prompt's forward ask for alike, made once on CUDA: each is a launch or more."""

import functools

import mlx.core as mx

from vqx import kernels

MOST = 2**20
"""Numbers of an array that is held for others that ask for it."""


def counted(batch: int, heads: int, start: int, length: int) -> mx.array:
    """Positions of new rows from ``start`` on, ``[B, H, S]`` int32."""
    if _few(batch, heads, length):
        return _counted(batch, heads, start, length)
    return _places(batch, heads, start, length)


def alike(shape: tuple[int, int, int], value: float) -> mx.array:
    """One value for every new row, ``[B, H, S]`` float32."""
    return _alike(shape, value) if _few(*shape) else mx.full(shape, value, mx.float32)


def _few(batch: int, heads: int, length: int) -> bool:
    # single tokens would push prompts out
    return length >= 16 and batch * heads * length <= MOST and kernels.target() == "cuda"


def _places(batch: int, heads: int, start: int, length: int) -> mx.array:
    return mx.arange(start, start + length, dtype=mx.int32) + mx.zeros((batch, heads, 1), mx.int32)


@functools.lru_cache(maxsize=2)
def _counted(batch: int, heads: int, start: int, length: int) -> mx.array:
    return _under_way(_places(batch, heads, start, length))


@functools.lru_cache(maxsize=2)
def _alike(shape: tuple[int, int, int], value: float) -> mx.array:
    return _under_way(mx.full(shape, value, mx.float32))


def _under_way(array: mx.array) -> mx.array:
    """The array, evaluated by the thread that made it: others could not."""
    mx.async_eval(array)
    return array
