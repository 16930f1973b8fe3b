"""Gumbel noise that is frozen: a function of seed, layer, head and position, and of nothing else."""

import numpy as np
from vqx.noise import Doubles, Floats, frozen, uniform


def gumbel(seed: int, layer: int, heads: int, start: int, length: int) -> Floats:
    """One Gumbel(0, 1) draw for each head and each position from ``start`` on: ``[H, length]`` float32."""
    return frozen(seed, layer, heads, start, length, law=_gumbel)


def redrawn(seed: int, layer: int, heads: int, start: int, length: int) -> Floats:
    """A fresh draw for the block of queries from position ``start`` on: ``[H, length]``, by row position.

    It is drawn anew for every row seen so far at each call: an ablation, not made for speed.
    """
    seeds = [np.random.SeedSequence([seed, layer, head], spawn_key=(start,)) for head in range(heads)]
    return _gumbel(uniform(seeds, length))


def _gumbel(uniform: Doubles) -> Floats:
    # draws lie in [0, 1): the smallest double keeps the outer logarithm finite
    return (-np.log(-np.log(np.maximum(uniform, 5e-324)))).astype(np.float32)
