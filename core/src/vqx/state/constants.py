"""Arrays that layers ask for alike, or one after another, made once on CUDA: each is a launch or more."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np

from vqx import kernels
from vqx.scorers import Arrivals

MOST = 2**18
"""Numbers of an array that is held for others that ask for it."""

AHEAD = 256
"""Positions whose rows' statistics are made at once, where those of several layers differ."""

SOON = 32
"""The same where sequences of a batch differ too."""

Init: TypeAlias = Callable[[Arrivals], Mapping[str, Any]]


def counted(batch: int, heads: int, start: int, length: int) -> mx.array:
    """Positions of new rows from ``start`` on, ``[B, H, S]`` int32."""
    if _few(batch, heads, length):
        return _counted(batch, heads, start, length)
    return _places(batch, heads, start, length)


class _Shaped(NamedTuple):
    """What is known of rows that have not come, or that nobody has put side by side."""

    shape: tuple[int, ...]


def started(init: Init, shape: tuple[int, ...], start: Any) -> tuple[mx.array, Mapping[str, mx.array]] | None:
    """Positions and statistics of new rows of shape ``[B, H, S, D]``; None as of ``columns``."""
    found = columns(init, shape, start)
    return None if found is None else (_counted(*shape[:2], start, shape[2]), found)


def columns(init: Init, shape: tuple[int, ...], start: Any) -> Mapping[str, mx.array] | None:
    """What rows of shape ``[B, H, S, D]`` start with; None: that differs among layers, or is not held."""
    return _columns(init, shape, start) if isinstance(start, int) and _few(*shape[:3]) else None


def told(init: Init, shape: tuple[int, ...], start: Any) -> Mapping[str, mx.array] | None:
    """What rows of shape ``[B, H, S, D]`` start with; None: it takes the rows themselves to tell."""
    like: Any = _Shaped(shape)
    try:
        found = init(Arrivals(like, like, start))
    except (AttributeError, TypeError):
        return None
    return {name: held(column) for name, column in found.items()}


_columns = functools.lru_cache(maxsize=64)(told)


def together(
    inits: tuple[Init, ...], shape: tuple[int, int, int, int], start: int
) -> Mapping[str, mx.array] | None:
    """What rows of L layers start with, ``[L * B, H, S]`` each; None: it takes the rows themselves to tell.

    Args:
        inits: of each layer.
        shape: of one layer's rows, ``[B, H, S, D]``.
        start: the position of the first.
    """
    first, (batch, heads, count, width) = inits[0], shape
    if all(init is first for init in inits):
        return told(first, (len(inits) * batch, heads, count, width), start)
    numbers = range(start // AHEAD, (start + count - 1) // AHEAD + 1)
    each = [_ahead(inits, (batch, heads, AHEAD, width), number) for number in numbers]
    found, at = [one for one in each if one is not None], start % AHEAD
    if len(found) < len(each):
        return None
    if len(found) > 1:
        found = [{name: mx.concatenate([one[name] for one in found], axis=2) for name in found[0]}]
    return {name: column[..., at : at + count] for name, column in found[0].items()}


def abreast(
    inits: tuple[Init, ...], shape: tuple[int, int, int, int], starts: tuple[int, ...]
) -> Mapping[str, mx.array] | None:
    """As ``together`` where the rows of each of B sequences start at a position of its own."""
    batch, heads, count, width = shape
    if count > 1 or min(starts) < SOON:
        return _abreast(inits, shape, starts)
    at = starts[0] % SOON  # tokens come to all of them at once
    soon = _soon(inits, (batch, heads, SOON, width), tuple([start - at for start in starts]))
    return None if soon is None else {name: column[..., at : at + 1] for name, column in soon.items()}


def _abreast(
    inits: tuple[Init, ...], shape: tuple[int, int, int, int], starts: tuple[int, ...]
) -> Mapping[str, mx.array] | None:
    batch, heads, count, width = shape
    each = [together(inits, (1, heads, count, width), start) for start in starts]
    found = [one for one in each if one is not None]
    if len(found) < batch:
        return None
    return {k: mx.stack([one[k] for one in found], axis=1).reshape(-1, heads, count) for k in found[0]}


@functools.lru_cache(maxsize=8)
def _soon(
    inits: tuple[Init, ...], shape: tuple[int, int, int, int], starts: tuple[int, ...]
) -> Mapping[str, mx.array] | None:
    found = _abreast(inits, shape, starts)
    return None if found is None else {name: _under_way(column) for name, column in found.items()}


@functools.lru_cache(maxsize=16)
def _ahead(
    inits: tuple[Init, ...], shape: tuple[int, int, int, int], number: int
) -> Mapping[str, mx.array] | None:
    each = [told(init, shape, number * AHEAD) for init in inits]
    found = [one for one in each if one and all(column.shape == shape[:3] for column in one.values())]
    if len(found) < len(each):
        return None
    return {name: _under_way(mx.concatenate([one[name] for one in found])) for name in found[0]}


def held(column: Any) -> mx.array:
    """A column of new rows; of one value for all of them nothing is copied."""
    if isinstance(column, np.ndarray) and column.size > 1 and not any(column.strides):
        return alike(column.shape, float(column.flat[0]))
    return column if isinstance(column, mx.array) else mx.array(column)


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
