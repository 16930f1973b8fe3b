"""Gumbel noise that is frozen: a function of seed, layer, head and position, and of nothing else."""

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from vqx.noise import Doubles, Floats, frozen, frozen_array, uniform


def gumbel(seed: int, layer: int, heads: int, start: int, length: int, rank: int = 0) -> Floats:
    """One Gumbel(0, 1) draw for each head and each position from ``start`` on: ``[H, length]`` float32.

    ``rank`` as of ``vqx.noise.frozen``.
    """
    return frozen(seed, layer, heads, start, length, law=_gumbel, rank=rank)


def gumbel_array(
    seed: int, layer: int, heads: int, start: int | npt.NDArray[np.int64], length: int, rank: int = 0
) -> mx.array:
    """The same on the device, ``[1, H, length]``; ``start`` may be one for each sequence of a batch."""
    return frozen_array(seed, layer, heads, start, length, law=_gumbel, rank=rank)


def redrawn(seed: int, layer: int, heads: int, start: int, length: int, rank: int = 0) -> Floats:
    """A fresh draw for the block of queries from position ``start`` on: ``[H, length]``, by row position.

    It is drawn anew for every row seen so far at each call: an ablation, not made for speed.
    """
    numbers = range(rank * heads, (rank + 1) * heads)
    seeds = [np.random.SeedSequence([seed, layer, head], spawn_key=(start,)) for head in numbers]
    return _gumbel(uniform(seeds, length))


def _gumbel(uniform: Doubles) -> Floats:
    # draws lie in [0, 1): the smallest double keeps the outer logarithm finite
    return (-np.log(-np.log(np.maximum(uniform, 5e-324)))).astype(np.float32)
