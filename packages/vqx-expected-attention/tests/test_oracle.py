"""Kept rows equal those of plain loops in float64."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from vqx import Options
from vqx.testing import Shape, cache_of, feed, remaining, stream

pytestmark = pytest.mark.filterwarnings("ignore:.* with recent=0 may evict:UserWarning")

BAND = 1e-4
"""Relative gap of scores below which float32 may decide otherwise."""


@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        ([60], {}),
        ([60], {"value_norm": False, "future": 40, "n_sink": 0}),
        ([3, 30, 17, *[1] * 5], {"recent": 5}),
        ([*[1] * 22], {"epsilon": 0.02, "n_sink": 1}),
    ],
)
@pytest.mark.parametrize("name", ["gaussian", "topics"])
def test_kept_rows_are_the_oracles(
    oracle: ModuleType, name: str, blocks: list[int], options: dict[str, Any]
) -> None:
    options = {"budget": 14, "recent": 0, "future": 48, **options}
    compared = 0
    for seed in range(2):
        tokens = stream(name, seed, Shape(sum(blocks), batch=1, heads=2))
        queries = np.array(tokens.queries, np.float64).reshape(2, 2, -1, 16)
        cache = feed(cache_of("expected-attention", Options(queries="model"), **options), tokens, blocks)
        position = remaining(cache).position[0]
        for head in range(2):
            keys, values = (np.array(array, np.float64)[0, head] for array in tokens[1:])
            right, narrowest = oracle.kept(queries[head], keys, values, blocks=blocks, **options)
            if narrowest > BAND:
                compared += 1
                assert position[head].tolist() == right
    assert compared >= 2


def test_the_oracle_on_numbers_worked_out_by_hand(oracle: ModuleType) -> None:
    # D = 2, no rotation to speak of: queries (1, 0) and (3, 0) about mean 2 with variance 1
    queries = np.array([[oracle.turn(np.array([q, 0.0]), t) for t, q in enumerate((1.0, 3.0))]])
    keys, values = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [-3.0]])
    turned = oracle.averaged(2, 1, 2)
    assert turned == pytest.approx(np.array([[np.cos(2), -np.sin(2)], [np.sin(2), np.cos(2)]]))
    exponent = 2 * np.cos(2) / np.sqrt(2) + np.cos(2) ** 2 / 4
    share = np.exp(exponent) / (1 + np.exp(exponent))
    found = oracle.scores(queries, keys, values, [0, 1], n_sink=0, future=1, value_norm=True, epsilon=0.5)
    assert found == pytest.approx([1.5 - share, 3 * (share + 0.5)])
