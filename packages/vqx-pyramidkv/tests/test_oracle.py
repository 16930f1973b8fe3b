"""PyramidKV against an independent oracle: the budgets of the layers, and the rows that each keeps."""

from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vqx import EvictingCache, LayerInfo, Options
from vqx.testing import Shape, feed, remaining, stream
from vqx_pyramidkv import PyramidKVConfig, layer_budgets
from vqx_pyramidkv.method import build


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 40), st.integers(14, 2000), st.integers(4, 200), st.integers(0, 5), st.integers(1, 8))
def test_budgets_fall_along_the_line_and_their_mean_is_exact(
    oracle: ModuleType, layers: int, mean: int, quarters: int, n_sink: int, window: int
) -> None:
    config = PyramidKVConfig(budget=mean, n_sink=n_sink, window=window, beta=quarters / 4)
    budgets = layer_budgets(config, layers)
    assert sum(budgets) == mean * layers
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[-1] > n_sink + window
    right = oracle.line(layers, mean, Fraction(quarters, 4), n_sink + window + 1)
    assert all(
        abs(budget - exact) <= Fraction(501, 1000) for budget, exact in zip(budgets, right, strict=True)
    )


def test_the_papers_shape() -> None:
    """Twenty times less than the mean in the last layer, as much above it in the first."""
    assert layer_budgets(PyramidKVConfig(budget=1000), 5) == [1950, 1475, 1000, 525, 50]


def test_a_budget_below_the_guards_is_lifted_and_the_first_layers_pay() -> None:
    assert layer_budgets(PyramidKVConfig(budget=100), 3) == [187, 100, 13]
    assert layer_budgets(PyramidKVConfig(budget=13), 3) == [13, 13, 13]


@pytest.mark.parametrize("seed", range(3))
def test_each_layer_keeps_the_oracles_rows(oracle: ModuleType, seed: int) -> None:
    tokens = stream("gaussian", seed, Shape(64, batch=1, heads=2, group=2))
    queries = np.array(tokens.queries).reshape(2, 2, 64, 16)
    config = PyramidKVConfig(budget=20, n_sink=2, window=4, kernel=3, beta=3)
    methods = build(config, [LayerInfo(number, "model") for number in range(4)])
    assert len({method.budget for method in methods}) == 4
    for method in methods:
        rows = remaining(feed(EvictingCache(method, Options(queries="model")), tokens, [64]))
        for h in range(2):
            right, gap = oracle.kept(queries[h], np.array(tokens.keys)[0, h], method.budget, 2, 4, 3, 0.25)
            assert gap > 1e-6
            assert rows.position[0, h].tolist() == right
