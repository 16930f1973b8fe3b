"""Keys in compact positions: gathered, and turned once by the steps that their rows moved.

The model's own rotary module says in tables what a turn is; the reference is ``vqx.state.positions``.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from vqx_kernels.bodies import compose
from vqx_kernels.kernel import Run, flat, prepared
from vqx_kernels.small import Guard, sizes

NEAR = 256
"""Steps of the first table: a turn is one of it after one of the second."""
SPAN = 32
"""Rows of a block."""


class Turns(NamedTuple):
    """What turns by so many steps are, pair by pair of channels; one that is not turned has cosine 1."""

    channels: mx.array  # [2, P] int32: the two of each pair, every channel in one
    near: mx.array  # [256, P, 2] float32: cosine and sine of a turn by t steps
    far: mx.array  # [F, P, 2] float32: by 256 t steps


def turned(
    target: str,
    keys: mx.array,
    steps: mx.array,
    turns: Turns,
    slots: mx.array | None = None,
    *,
    whole: bool = False,
) -> mx.array:
    """Keys turned back by so many steps, ``[B, H, n, D]`` of the keys' type.

    Args:
        keys: ``[B, H, N, D]`` float32, float16 or bfloat16.
        steps: ``[B, H, n]`` int32, less than 256 F; one below 0, of padding, counts as 0.
        slots: ``[B, H, n]`` int32, the rows to gather; None: the first n where they lie.
        whole: steps and slots are known to lie row by row.
    """
    batch, heads, n = steps.shape
    launch = _launch(
        target, keys.dtype, (batch, heads, n, keys.shape[3]), turns.channels.size // 2, slots is not None
    )
    steps = steps if whole else flat(steps)
    slots = steps if slots is None else slots if whole else flat(slots)
    return launch([keys, slots, steps, sizes(n, 0, _NOBODY), *map(flat, turns)])[0]


def turned_together(target: str, keys: Sequence[mx.array], steps: mx.array, turns: Turns) -> list[mx.array]:
    """The same for L layers that are shaped alike, in one launch.

    Args:
        keys: L arrays ``[B, H, capacity, D]``, of which the first n rows are read.
        steps: ``[L * B, H, n]`` int32, row by row; as of ``turned``.
    """
    (batch, heads, capacity, width), n = keys[0].shape, steps.shape[2]
    shape = (batch, heads, n, width)
    launch = _launch(target, keys[0].dtype, shape, turns.channels.size // 2, False, len(keys))
    places = sizes(n, 0, _NOBODY, 1, batch * heads, capacity)
    return launch([*keys, steps, steps, places, *map(flat, turns)])


_NOBODY = Guard()


@functools.lru_cache(maxsize=256)
def _launch(
    target: str, dtype: mx.Dtype, shape: tuple[int, ...], pairs: int, gather: bool, layers: int = 1
) -> Run:
    """What does it, of the body's arrays in their order: made once, since every layer asks at every token."""
    batch, heads, n, width = shape
    constants = {"H": heads, "D": width, "PAIRS": pairs, "GATHER": int(gather), "SPAN": SPAN}
    return prepared(
        target,
        compose(("turned",), layers=layers),
        (*[dtype] * layers, *[mx.int32] * 4, mx.float32, mx.float32),
        tuple(constants.items()),
        rows=layers * batch * heads,
        parts=-(-n // SPAN),
        outputs=((shape, dtype),) * layers,
    )
