"""Gumbel noise that is frozen: a function of seed, layer, head and position, and of nothing else.

It is drawn on the host in blocks of positions, so it has the same bits on every device, however the stream
is cut, and whatever heads or sequences stand beside.
"""

import functools

import numpy as np
import numpy.typing as npt

BLOCK = 1024
"""Positions drawn at once."""


def gumbel(seed: int, layer: int, heads: int, start: int, length: int) -> npt.NDArray[np.float32]:
    """One Gumbel(0, 1) draw for each head and each position from ``start`` on: ``[H, length]`` float32."""
    first, last = start // BLOCK, (start + length - 1) // BLOCK
    blocks = [_block(seed, layer, heads, number) for number in range(first, last + 1)]
    offset = start - first * BLOCK
    return np.concatenate(blocks, axis=1)[:, offset : offset + length]


@functools.lru_cache(maxsize=512)
def _block(seed: int, layer: int, heads: int, number: int) -> npt.NDArray[np.float32]:
    return _draw([np.random.SeedSequence([seed, layer, head, number]) for head in range(heads)], BLOCK)


def redrawn(seed: int, layer: int, heads: int, start: int, length: int) -> npt.NDArray[np.float32]:
    """A fresh draw for the block of queries from position ``start`` on: ``[H, length]``, by row position.

    It is drawn anew for every row seen so far at each call: an ablation, not made for speed.
    """
    seeds = [np.random.SeedSequence([seed, layer, head], spawn_key=(start,)) for head in range(heads)]
    return _draw(seeds, length)


def _draw(seeds: list[np.random.SeedSequence], length: int) -> npt.NDArray[np.float32]:
    uniform = np.stack([np.random.Generator(np.random.Philox(seed)).random(length) for seed in seeds])
    # random() lies in [0, 1): the smallest double keeps the outer logarithm finite
    return (-np.log(-np.log(np.maximum(uniform, 5e-324)))).astype(np.float32)
