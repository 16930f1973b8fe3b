"""Kept rows equal those of plain loops in float64."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from vqx import Options
from vqx.testing import Shape, cache_of, feed, remaining, stream

BAND = 1e-5
"""Gap of scores below which float32 may decide otherwise."""


@pytest.mark.parametrize("cadence", ["block", "token"])
@pytest.mark.parametrize("local", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("blocks", [[70], [30, 17, *[1] * 12]], ids=str)
def test_kept_rows_are_the_oracles(oracle: ModuleType, cadence: Any, local: float, blocks: list[int]) -> None:
    options: dict[str, Any] = {"budget": 14, "n_sink": 2, "recent": 3, "local": local}
    compared = 0
    for seed in range(3):
        for name in ("gaussian", "topics", "dominant sink"):
            tokens = stream(name, seed, Shape(sum(blocks), batch=1))
            engine = Options(queries="model", cadence=cadence)
            position = remaining(feed(cache_of("fusion", engine, **options), tokens, blocks)).position[0]
            cuts = blocks if cadence == "block" else [1] * sum(blocks)
            queries = np.array(tokens.queries, np.float64)[0].reshape(2, 2, sum(blocks), -1)
            for head in range(2):
                keys = np.array(tokens.keys, np.float64)[0, head]
                right, narrowest = oracle.kept(queries[head], keys, blocks=cuts, **options)
                if narrowest > BAND:
                    compared += 1
                    assert position[head].tolist() == right, (name, seed)
    assert compared >= 9


def test_expected_attention_chooses_the_rest_where_it_is_asked_for() -> None:
    tokens = stream("topics", 0, Shape(60))
    engine = Options(queries="model")
    kept = {
        beyond: remaining(feed(cache_of("fusion", engine, budget=14, beyond=beyond), tokens, [60])).position
        for beyond in ("distinct", "expected")
    }
    assert not np.array_equal(kept["distinct"], kept["expected"])


def test_the_rows_that_attention_chose_stay_whatever_their_keys_are() -> None:
    tokens = stream("gaussian", 0, Shape(60, batch=1))
    engine = Options(queries="model")
    setting = {"budget": 16, "n_sink": 2, "recent": 4}
    attended = remaining(feed(cache_of("fusion", engine, **setting, local=1.0), tokens, [60])).position[0]
    half = remaining(feed(cache_of("fusion", engine, **setting, local=0.5), tokens, [60])).position[0]
    for head in range(2):
        shared = set(half[head].tolist()) & set(attended[head].tolist())
        assert len(shared) >= 2 + 4 + 5
    assert not np.array_equal(attended, half)
