"""Strides, beside NumPy's: what is a view there is one here."""

import itertools
from typing import Any

import numpy as np
import pytest
from vqx.host import layouts


def steps(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


TRANSPOSED = [
    np.zeros((2, 3, 4, 5))[:, ::step, first:].transpose(axes)
    for axes in ((0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 1, 2))
    for step in (1, 2)
    for first in (0, 1)
]


@pytest.mark.parametrize("array", TRANSPOSED, ids=lambda array: f"{array.shape} {steps(array)}")
def test_a_reshape_copies_where_numpys_does(array: np.ndarray[Any, Any]) -> None:
    a, b, c, d = array.shape
    copied = []
    for new in ((a * b, c, d), (a, b * c, d), (a, b, c * d), (array.size,), (a, 1, b, c, 1, d), (d, c, b, a)):
        found = layouts.reshaped(array.shape, steps(array), new)
        other = array.reshape(new)
        copied.append(found is None)
        assert copied[-1] == (not np.shares_memory(array, other))
        if found is not None:
            assert layouts.alike(new, found, steps(other))
    assert any(copied) == (not array.flags.c_contiguous)


def test_views_have_the_strides_of_numpys() -> None:
    array = np.zeros((4, 6, 8))
    turned = layouts.viewed("Transpose", (4, 6, 8), steps(array), (8, 4, 6), [[2, 0, 1]])
    assert turned == steps(array.transpose(2, 0, 1))
    cut = layouts.viewed("Slice", (4, 6, 8), steps(array), (4, 3, 7), [(0, 0, 1), (4, 6, 8), (1, 2, 1)])
    assert cut == steps(array[:, ::2, 1:])
    wide = layouts.viewed("Broadcast", (6, 1), (1, 1), (4, 6, 8), [(4, 6, 8)])
    assert wide == (0, 1, 0) == steps(np.broadcast_to(np.zeros((6, 1)), (4, 6, 8)))
    assert layouts.viewed("Contiguous", (8, 4, 6), turned, (8, 4, 6), []) is None
    assert layouts.viewed("Contiguous", (4, 6, 8), steps(array), (4, 6, 8), []) == steps(array)


def test_what_is_made_elementwise_keeps_an_order_that_all_share() -> None:
    for axes in itertools.permutations(range(3)):
        array = np.zeros((4, 6, 8)).transpose(axes)
        given = (array.shape, steps(array))
        assert layouts.shared(array.shape, [given, given]) == steps(array + array)
        assert layouts.like(array.shape, steps(array[:, :, ::2])) == steps(array)
    rows = ((4, 6), (12, 1))  # of a wider array: there are gaps
    assert layouts.shared((4, 6), [rows]) == (6, 1)
    assert layouts.shared((4, 6), [((4, 6), (1, 4)), ((4, 6), (6, 1))]) == (6, 1)


def test_a_product_reads_whole_matrices_and_their_transposes() -> None:
    assert layouts.multiplies((2, 5, 8), (40, 8, 1))
    assert layouts.multiplies((2, 8, 5), (40, 1, 8))
    assert not layouts.multiplies((2, 5, 8), (8, 16, 1)), "heads stand side by side"
