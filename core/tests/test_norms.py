"""Norms and directions, on the device and on the host."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx.norms import norm, unit, wide

ROWS = [[3.0, 4.0], [0.0, 0.0], [300.0, 400.0]]


@pytest.mark.parametrize("make", [np.float32, np.float16, mx.array, lambda x: mx.array(x, mx.float16)])
def test_norms_are_float32_and_zero_has_no_direction(make: Callable[[Any], Any]) -> None:
    rows = make(ROWS)
    assert np.array(norm(rows)).tolist() == [5.0, 0.0, 500.0]
    np.testing.assert_allclose(np.array(unit(rows)), [[0.6, 0.8], [0, 0], [0.6, 0.8]], rtol=1e-6)
    for found in (wide(rows), norm(rows), unit(rows)):
        assert isinstance(found, type(mx.array(0)) if isinstance(rows, mx.array) else np.ndarray)
        assert np.array(found).dtype == np.float32
