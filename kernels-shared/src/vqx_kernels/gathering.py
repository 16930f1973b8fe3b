"""Rows of many arrays in one launch: a GPU's host takes longer to ask for each than to go through all."""

import functools
import math
from collections.abc import Sequence

import mlx.core as mx

from vqx_kernels.bodies import compose
from vqx_kernels.kernel import Run, prepared

ARRAYS = 256
"""Arrays of a launch at most: their addresses take half of what a kernel of CUDA's may be handed."""


def gathered(target: str, arrays: Sequence[mx.array], each: int, first: int, count: int) -> list[mx.array]:
    """Rows ``first`` to ``first + count`` of arrays ``[B, H, N, D]``, those of ``each`` one after the other.

    As ``mx.concatenate`` of so many, at most 256, along the third axis: ``[B, H, each * count, D]``.
    """
    batch, heads, rows, width = arrays[0].shape
    dtype, at = arrays[0].dtype, _places(rows, first, count, each, batch * heads, width)
    found: list[mx.array] = []
    most = ARRAYS // each * each
    for begin in range(0, len(arrays), most):
        some = arrays[begin : begin + most]
        launch = _launch(target, dtype, len(some), each, (batch, heads, count, width))
        found += mx.split(launch([*some, at])[0], len(some) // each)
    return found


@functools.lru_cache(maxsize=64)
def _places(*numbers: int) -> mx.array:
    return mx.array(numbers, mx.int32)


@functools.lru_cache(maxsize=64)
def _launch(target: str, dtype: mx.Dtype, number: int, each: int, shape: tuple[int, int, int, int]) -> Run:
    batch, heads, count, width = shape
    return prepared(
        target,
        compose(("gathered",), layers=number),
        (*[dtype] * number, mx.int32),
        (),
        rows=batch * heads,
        parts=number,
        outputs=(((number // each * batch, heads, each * count, width), dtype),),
    )


def joined(target: str, arrays: Sequence[mx.array]) -> mx.array:
    """At most 256 arrays ``[B, H, ...]``, one behind the other: as ``mx.concatenate`` of them."""
    batch, heads, *each = arrays[0].shape
    n = math.prod(each)
    launch = _launch(target, arrays[0].dtype, len(arrays), 1, (batch, heads, n, 1))
    return launch([*arrays, _places(n, 0, n, 1, batch * heads, 1)])[0].reshape(-1, heads, *each)


SPAN = 32
"""Rows of a block."""


def picked(target: str, arrays: Sequence[mx.array], slots: mx.array, capacity: int) -> list[mx.array]:
    """The rows of each array at slots of its own, the first ones of arrays ``[B, H, capacity, D]``.

    Args:
        arrays: ``[B, H, N, D]`` each, at most 128: those of L layers, then again of L layers, and so on.
        slots: ``[L * B, H, m]`` int32, row by row.
        capacity: at least m; rows from there on are zeros.
    """
    (batch, heads, rows, width), keep, sets = arrays[0].shape, slots.shape[2], slots.shape[0]
    launch = _picking(
        target, arrays[0].dtype, len(arrays), keep, (batch, heads, capacity, width), sets // batch
    )
    return launch([*arrays, slots, _places(rows, keep, capacity, width)])


@functools.lru_cache(maxsize=64)
def _picking(
    target: str, dtype: mx.Dtype, number: int, keep: int, shape: tuple[int, int, int, int], sets: int
) -> Run:
    lanes, row = shape[0] * shape[1], shape[3] * dtype.size
    pieces = 1 if row % 16 else row // 16
    return prepared(
        target,
        compose(("picked",), layers=number),
        (*[dtype] * number, mx.int32, mx.int32),
        (("SPAN", SPAN), ("LANES", lanes), ("SETS", sets), ("PIECES", pieces)),
        rows=lanes,
        parts=number * -(-keep // SPAN),
        outputs=((shape, dtype),) * number,
    )


LOOKED = 8448
"""Numbers that a block looks at."""
STRIDES = 32
"""Arrays of a launch that says how each lies, at most."""


def nans(target: str, arrays: Sequence[mx.array], first: int, count: int) -> list[mx.array]:
    """Whether rows ``first`` to ``first + count`` of arrays ``[B, H, N, D]`` hold NaN: ``[1]`` of each."""
    batch, heads, _, width = arrays[0].shape
    pieces, lanes = -(-count * width // LOOKED), batch * heads
    at = _places(first, count, pieces, lanes)
    found: list[mx.array] = []
    for begin in range(0, len(arrays), STRIDES):
        some = arrays[begin : begin + STRIDES]
        launch = _look(target, arrays[0].dtype, len(some), pieces, (batch, heads, width))
        found += mx.split(mx.any(launch([*some, at])[0], axis=1), len(some))
    return found


@functools.lru_cache(maxsize=64)
def _look(target: str, dtype: mx.Dtype, number: int, pieces: int, shape: tuple[int, int, int]) -> Run:
    batch, heads, width = shape
    return prepared(
        target,
        compose(("nans",), layers=number),
        (*[dtype] * number, mx.int32),
        (("SPAN", LOOKED), ("H", heads), ("D", width)),
        rows=batch * heads,
        parts=number * pieces,
        outputs=(((number, batch * heads * pieces), mx.bool_),),
    )
