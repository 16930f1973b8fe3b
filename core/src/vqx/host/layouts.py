"""How arrays stand in memory while MLX works on them: by strides it decides what has to be copied."""

from collections.abc import Sequence
from typing import Any, TypeAlias

Sizes: TypeAlias = tuple[int, ...]
"""A shape, or strides: of each axis how many numbers further its next index stands."""


def in_order(shape: Sizes) -> Sizes:
    """The strides of numbers that stand in the order of their indices."""
    return ordered_as(shape, range(len(shape)))


def ordered_as(shape: Sizes, axes: Sequence[int]) -> Sizes:
    """The strides of numbers without gaps; ``axes`` from the one with the longest steps on."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def like(shape: Sizes, strides: Sizes) -> Sizes:
    """The strides of numbers without gaps in the order of others."""
    return ordered_as(shape, sorted(range(len(shape)), key=lambda axis: -strides[axis]))


def alike(shape: Sizes, one: Sizes, other: Sizes) -> bool:
    return all(a == b or n == 1 for n, a, b in zip(shape, one, other, strict=True))


def reshaped(shape: Sizes, strides: Sizes, new: Sizes) -> Sizes | None:
    """The strides in another shape of as many numbers; None where they have to be copied for it."""
    runs: list[tuple[int, int]] = []  # numbers that follow one another, and the step between them
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    found, left, step = [], 1, 1
    for size in reversed(new):
        if size > 1 and left == 1:
            left, step = runs.pop()
        if left % size:
            return None
        found.append(step)
        left, step = left // size, step * size
    return tuple(reversed(found))


def viewed(kind: str, shape: Sizes, strides: Sizes, new: Sizes, arguments: Sequence[Any]) -> Sizes | None:
    """The strides of a view that an operation takes of an array; None where it has to copy.

    ``arguments`` are those of MLX's primitive of that name.
    """
    if kind == "Transpose":
        return tuple(strides[axis] for axis in arguments[0])
    if kind == "Slice":
        return tuple(stride * step for stride, step in zip(strides, arguments[2], strict=True))
    if kind == "AsStrided":
        return tuple(arguments[1])
    if kind in ("Broadcast", "BroadcastAxes"):
        first = len(new) - len(shape)
        old = zip(shape, strides, strict=True)
        pairs = zip(old, new[first:], strict=True)
        spread = [stride if size == there else 0 for (size, stride), there in pairs]
        return (*[0] * first, *spread)
    if kind in ("Reshape", "Flatten", "Unflatten", "ExpandDims", "Squeeze"):
        return reshaped(shape, strides, new)
    if kind == "Contiguous":
        return strides if alike(shape, strides, in_order(shape)) else None
    return strides if kind != "View" or new == shape else in_order(new)


def shared(new: Sizes, inputs: Sequence[tuple[Sizes, Sizes]]) -> Sizes:
    """The strides of what an elementwise operation makes of ``inputs``, which are shapes with strides.

    Theirs, where all have the same and no gaps.
    """
    first, *others = [strides for shape, strides in inputs if shape == new] or [in_order(new)]
    same = all(alike(new, first, one) for one in others) and alike(new, first, like(new, first))
    return first if same else in_order(new)


def multiplies(shape: Sizes, strides: Sizes) -> bool:
    """Whether a matrix product reads an array's matrices as they stand, and need not copy them."""
    (rows, columns), (down, along) = shape[-2:], strides[-2:]
    return (along == 1 and down == columns) or (down == 1 and along == rows)
