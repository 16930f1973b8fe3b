"""Draws that are frozen: a function of seed, layer, head and position, and of nothing else.

They are drawn on the host in blocks of positions, so they have the same bits on every device, however the
stream is cut, and whatever heads or sequences stand beside.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from vqx import kernels

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Law: TypeAlias = Callable[[Doubles], Floats]
"""Uniform draws in [0, 1) -> draws of another distribution."""

BLOCK = 1024
"""Positions drawn at once."""

NEAR = 4
"""Blocks that a chunk of a prompt lies in, at most, for the device to keep its draws."""


def below_one(uniform: Doubles) -> Floats:
    """The uniform draws themselves, of which none becomes 1 by rounding."""
    return np.minimum(uniform.astype(np.float32), np.float32(1 - 2**-24))


def frozen(
    seed: int,
    layer: int,
    heads: int,
    start: int | npt.NDArray[np.int64],
    length: int,
    *,
    law: Law = below_one,
    key: tuple[int, ...] = (),
    rank: int = 0,
) -> Floats:
    """One draw for each head and each position from ``start`` on: ``[H, length]`` float32.

    Draws of another ``key`` are independent: two methods that compose by name share a seed. ``start`` may be
    one for each sequence of a batch, ``[B]``: then ``[B, H, length]``. Where several processes share a
    layer's heads, ``rank`` says which: the others' draws come before.
    """
    if rank:
        before = rank * heads
        every = frozen(seed, layer, before + heads, start, length, law=law, key=key)
        return every[..., before:, :]
    if not isinstance(start, int):
        position = start[:, None] + np.arange(length)
        numbers, of = np.unique(position // BLOCK, return_inverse=True)
        drawn = np.stack([_block(law, seed, layer, heads, int(number), key) for number in numbers])
        return drawn[of.reshape(position.shape), :, position % BLOCK].swapaxes(1, 2)
    first, last = start // BLOCK, (start + length - 1) // BLOCK
    blocks = [_block(law, seed, layer, heads, number, key) for number in range(first, last + 1)]
    offset = start - first * BLOCK
    return np.concatenate(blocks, axis=1)[:, offset : offset + length]


def frozen_array(
    seed: int,
    layer: int,
    heads: int,
    start: int | npt.NDArray[np.int64],
    length: int,
    *,
    law: Law = below_one,
    rank: int = 0,
) -> mx.array:
    """As ``frozen``, as an array of the device: ``[1, H, length]``, or ``[B, H, length]``.

    On CUDA whole blocks stay there, so that another prompt, or a token of the same block, asks nothing of
    the host: the GPU would wait for it, and for page after page of what it wrote.
    """
    if not isinstance(start, int):
        return mx.array(frozen(seed, layer, heads, start, length, law=law, rank=rank))
    first, end = start // BLOCK, -(-(start + length) // BLOCK)
    if end - first > NEAR or kernels.target() != "cuda":
        drawn = frozen(seed, layer, heads, start, length, law=law, rank=rank)
        return mx.array(np.ascontiguousarray(drawn))[None]
    held, offset = _blocks(law, seed, layer, heads, first, end, rank), start - first * BLOCK
    return held if held.shape[2] == length else held[..., offset : offset + length]


def uniform(seeds: Sequence[np.random.SeedSequence], length: int) -> Doubles:
    """Draws in [0, 1), a row for each seed: ``[len(seeds), length]``."""
    return np.stack([np.random.Generator(np.random.Philox(seed)).random(length) for seed in seeds])


@functools.lru_cache(maxsize=256)
def _blocks(law: Law, seed: int, layer: int, heads: int, first: int, end: int, rank: int) -> mx.array:
    length = (end - first) * BLOCK
    return mx.array(frozen(seed, layer, heads, first * BLOCK, length, law=law, rank=rank))[None]


@functools.lru_cache(maxsize=512)
def _block(law: Law, seed: int, layer: int, heads: int, number: int, key: tuple[int, ...]) -> Floats:
    seeds = [np.random.SeedSequence([seed, layer, head, number], spawn_key=key) for head in range(heads)]
    return law(uniform(seeds, BLOCK))
