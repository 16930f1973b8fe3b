"""Kept rows equal those of plain loops in float64."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from vqx import Options
from vqx.testing import STREAMS, Shape, cache_of, feed, remaining, stream

pytestmark = pytest.mark.filterwarnings("ignore:.* with recent=0 may evict:UserWarning")

BAND = 1e-5
"""Gap of norms below which float32 may decide otherwise."""


@pytest.mark.parametrize("cadence", ["block", "token"])
@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        ([90], {}),
        ([90], {"n_sink": 0, "recent": 6}),
        ([3, 40, 17, *[1] * 20], {}),
        ([*[1] * 50], {"n_sink": 1}),
    ],
    ids=["whole", "recent", "chunks", "tokens"],
)
def test_kept_rows_are_the_oracles(
    oracle: ModuleType, cadence: Any, blocks: list[int], options: dict[str, Any]
) -> None:
    options = {"budget": 14, "recent": 0, **options}
    compared = 0
    for name in STREAMS:
        tokens = stream(name, 1, Shape(sum(blocks), batch=1))
        engine = Options(queries="model", cadence=cadence)
        cache = feed(cache_of("l2norm", engine, skip=0, **options), tokens, blocks)
        cuts = blocks if cadence == "block" else [1] * sum(blocks)
        for head, position in enumerate(remaining(cache).position[0]):
            keys = np.array(tokens.keys, np.float64)[0, head]
            right, narrowest = oracle.kept(keys, blocks=cuts, **options)
            if narrowest > BAND:
                compared += 1
                assert position.tolist() == right
    assert compared >= 8


def test_the_oracle_on_numbers_worked_out_by_hand(oracle: ModuleType) -> None:
    keys = np.array([[3.0, 4.0], [0.0, 6.0], [5.0, 0.0], [1.0, 0.0]])
    assert oracle.kept(keys, budget=2, n_sink=0, blocks=[4]) == ([2, 3], np.inf)
    assert oracle.kept(keys, budget=3, n_sink=0, blocks=[4]) == ([0, 2, 3], 1.0)
