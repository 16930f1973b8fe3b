"""Kept rows equal those of plain loops in float64."""

from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import Options
from vqx.testing import Shape, Stream, cache_of, feed, remaining, stream

pytestmark = pytest.mark.filterwarnings("ignore:.* with recent=0 may evict:UserWarning")

BAND = 1e-5
"""Gap of scores below which float32 may decide otherwise."""


@pytest.mark.parametrize("cadence", ["block", "token"])
@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        ([90], {}),
        ([90], {"n_sink": 0, "recent": 6}),
        ([3, 40, 17, *[1] * 20], {}),
        ([*[1] * 50], {"n_sink": 1}),
    ],
    ids=str,
)
def test_kept_rows_are_the_oracles(
    oracle: ModuleType, cadence: Any, blocks: list[int], options: dict[str, Any]
) -> None:
    options = {"budget": 14, "recent": 0, **options}
    compared = 0
    for name in ("gaussian", "topics", "tiny newest", "dominant sink"):
        tokens = stream(name, 1, Shape(sum(blocks), batch=1))
        engine = Options(queries="model", cadence=cadence)
        position = remaining(feed(cache_of("keydiff", engine, **options), tokens, blocks)).position[0]
        cuts = blocks if cadence == "block" else [1] * sum(blocks)
        for head in range(2):
            keys = np.array(tokens.keys, np.float64)[0, head]
            right, narrowest = oracle.kept(keys, blocks=cuts, **options)
            if narrowest > BAND:
                compared += 1
                assert position[head].tolist() == right
    assert compared >= 4


def test_of_equal_keys_the_oldest_goes_and_a_zero_key_counts_as_unlike() -> None:
    keys = np.tile(np.array([1.0, 2.0], np.float32), (12, 1))
    keys[5] = 0
    tokens = Stream(*[mx.array(keys)[None, None]] * 3)
    for cadence in ("block", "token"):
        engine = Options(queries="model", cadence=cadence)  # type: ignore[arg-type]
        kept = remaining(feed(cache_of("keydiff", engine, budget=4, n_sink=1, recent=0), tokens, [12]))
        assert kept.position[0, 0].tolist() == [0, 5, 10, 11]


def test_the_oracle_on_numbers_worked_out_by_hand(oracle: ModuleType) -> None:
    # directions (1, 0), (0, 1), (1, 0): the anchor is (2, 1) / 3
    keys = np.array([[3.0, 0.0], [0.0, 0.5], [1.0, 0.0]])
    assert oracle.scores(keys) == pytest.approx([-2 / 5**0.5, -1 / 5**0.5, -2 / 5**0.5])
    assert oracle.kept(keys, budget=2, n_sink=0, blocks=[3])[0] == [1, 2]
