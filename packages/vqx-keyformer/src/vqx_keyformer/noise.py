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
    each = [
        np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, layer, head, number])))
        for head in range(heads)
    ]
    uniform = np.stack([generator.random(BLOCK) for generator in each])
    # random() lies in [0, 1): the smallest double keeps the outer logarithm finite
    return (-np.log(-np.log(np.maximum(uniform, 5e-324)))).astype(np.float32)
