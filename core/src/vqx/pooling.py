"""Scores pooled along the sequence: a row is judged with its neighbours, or as a part of its chunk.

Rows are stored in no order: each function orders them by position, and puts its answer back. All work on
``mlx.core`` and on NumPy arrays.
"""

import functools
from typing import Any, Literal, TypeAlias

import mlx.core as mx
import numpy as np

from vqx.ranking import library

Pool: TypeAlias = Literal["mean", "max"]


def smoothed(score: Any, position: Any, kernel: int, pool: Pool = "mean") -> Any:
    """The mean or the greatest of the ``kernel`` (odd) scores around each row: ``[B, H, n]``.

    A mean divides by ``kernel`` at the ends too, where fewer rows stand: zeros are added to both ends.
    """
    of = library(score)
    order = of.argsort(position, axis=-1)
    n, half = score.shape[-1], kernel // 2
    ordered = of.take_along_axis(score, order, axis=-1)
    beyond = 0.0 if pool == "mean" else -np.inf
    padded = of.pad(ordered, [(0, 0), (0, 0), (half, half)], constant_values=beyond)
    around = [padded[..., first : first + n] for first in range(kernel)]
    pooled = sum(around[1:], around[0]) / kernel if pool == "mean" else functools.reduce(of.maximum, around)
    return _back(pooled, order)


def chunk_means(score: Any, position: Any, chunk: int, counted: Any) -> Any:
    """The mean score of the rows that stand in each row's chunk and are counted: ``[B, H, n]``.

    A chunk is ``chunk`` positions, the first of them a multiple of it; ``counted`` is ``[B, H, n]`` bool.
    Rows of one chunk get the same bits; a chunk of which no row is counted gets 0.
    """
    of = library(score)
    order = of.argsort(position, axis=-1)
    score, counted, number = (
        of.take_along_axis(column, order, axis=-1) for column in (score, counted, position // chunk)
    )
    n = score.shape[-1]
    age = of.arange(n)
    begins = of.where(number[..., 1:] == number[..., :-1], 0, age[1:])
    begins = of.concatenate([of.zeros_like(begins[..., :1]), begins], axis=-1)
    first = mx.cummax(begins, axis=-1) if of is mx else np.maximum.accumulate(begins, axis=-1)
    member = first[..., None] + of.arange(chunk)  # [B, H, n, chunk]
    flat = of.minimum(member, n - 1).reshape(*score.shape[:-1], n * chunk)
    scores, valid, numbers = (
        of.take_along_axis(column, flat, axis=-1).reshape(member.shape) for column in (score, counted, number)
    )
    valid = valid & (numbers == number[..., None]) & (member < n)
    total = of.where(valid, scores, 0.0).sum(axis=-1)
    mean = total / of.maximum(valid.sum(axis=-1), 1).astype(total.dtype)
    return _back(mean, order)


def _back(ordered: Any, order: Any) -> Any:
    """What was taken in this order, where it stood."""
    if isinstance(ordered, mx.array):
        return mx.put_along_axis(mx.zeros_like(ordered), order, ordered, axis=-1)
    found = np.empty_like(ordered)
    np.put_along_axis(found, order, ordered, axis=-1)
    return found
