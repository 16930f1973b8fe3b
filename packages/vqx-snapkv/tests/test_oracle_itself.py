"""The oracle against numbers worked out by hand; D = 1 and scale 1."""

import math
from types import ModuleType

import numpy as np
import pytest


def test_the_window_votes_and_neighbours_share(oracle: ModuleType) -> None:
    # Keys 0, 0, ln 4, 0, 0 and one query of 1 at position 4: weights 1/8, 1/8, 1/2, 1/8, 1/8.
    keys = np.array([[[0.0], [0.0], [math.log(4)], [0.0], [0.0]]])
    options = {"n_sink": 0, "window": 1, "group": "mean", "heads": "each", "scale": 1.0, "blocks": [5]}
    (alone,) = oracle.snapkv(np.ones((1, 1, 5, 1)), keys, budget=2, kernel=3, pool=None, **options)
    assert alone.positions == [2, 4]
    assert alone.narrowest == pytest.approx(3 / 8)
    # By threes: 2/24, 6/24, 6/24, 5/24: of the equals the newer stays; the window's own row is not pooled.
    (mean,) = oracle.snapkv(np.ones((1, 1, 5, 1)), keys, budget=2, kernel=3, pool="mean", **options)
    assert mean.positions == [2, 4]
    assert mean.narrowest == pytest.approx(1 / 24)
    (most,) = oracle.snapkv(np.ones((1, 1, 5, 1)), keys, budget=3, kernel=3, pool="max", **options)
    assert most.positions == [2, 3, 4]
    assert oracle.pooled([1.0, 4.0, 2.0, 0.0], 3, "mean") == pytest.approx([5 / 3, 7 / 3, 2, 2 / 3])
