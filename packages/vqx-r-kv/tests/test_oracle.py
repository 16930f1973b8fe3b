"""Kept rows equal those of plain loops in float64."""

from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import Options
from vqx.testing import Shape, cache_of, feed, remaining, stream
from vqx_r_kv import method
from vqx_r_kv.method import redundancy

BAND = 1e-7
"""Gap of scores, each about 1 / n, below which float32 may decide otherwise."""


@pytest.mark.parametrize("cadence", ["block", "token"])
@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        ([70], {"budget": 24}),
        ([70], {"budget": 24, "n_sink": 0, "window": 3, "kernel": 3, "mix": 0.6, "threshold": 0.2}),
        ([3, 40, 17, *[1] * 6], {"budget": 20, "group": "mean"}),
    ],
    ids=["whole", "options", "chunks"],
)
def test_kept_rows_are_the_oracles(
    oracle: ModuleType, cadence: Any, blocks: list[int], options: dict[str, Any]
) -> None:
    compared, cuts = 0, blocks if cadence == "block" else [*[1] * sum(blocks)]
    for name in ("gaussian", "topics", "dominant sink"):
        tokens = stream(name, 1, Shape(sum(blocks), batch=1))
        queries = np.array(tokens.queries, np.float64).reshape(2, 2, -1, 16)
        cache = feed(cache_of("r-kv", Options(queries="model", cadence=cadence), **options), tokens, blocks)
        for head, position in enumerate(remaining(cache).position[0]):
            keys = np.array(tokens.keys, np.float64)[0, head]
            right, narrowest = oracle.kept(queries[head], keys, blocks=cuts, **options)
            if narrowest > BAND:
                compared += 1
                assert position.tolist() == right
    assert compared >= 3


@pytest.mark.parametrize("make", [mx.array, np.array])
@pytest.mark.parametrize("tile", [2**23, 100])
def test_redundancy_is_the_oracles_in_any_order_and_by_tiles(
    oracle: ModuleType, make: Any, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(method, "TILE", tile)
    keys = np.array(stream("topics", shape=Shape(30, batch=1)).keys)
    order = np.random.default_rng(0).permutation(30)
    position = np.broadcast_to(7 * order, (1, 2, 30)).astype(np.int32)
    found = np.array(redundancy(make(keys[:, :, order]), make(position), 0.5))
    for head in range(2):
        right = np.array(oracle.redundancy(keys[0, head].astype(np.float64), 0.5))
        np.testing.assert_allclose(found[0, head], right[order], rtol=1e-5)


def test_of_rows_that_repeat_each_other_the_newest_stays() -> None:
    rng = np.random.default_rng(4)
    keys = rng.normal(size=(1, 1, 60, 16)).astype(np.float32)
    repeated = np.arange(10, 40, 3)
    keys[:, :, repeated] = keys[:, :, 10:11] + 0.01 * rng.normal(size=(1, 1, 10, 16))
    tokens = stream("gaussian", shape=Shape(60, batch=1, heads=1))._replace(keys=mx.array(keys))
    cache = feed(cache_of("r-kv", Options(queries="model"), budget=50, mix=0.0), tokens, [60])
    gone = sorted(set(range(60)) - set(remaining(cache).position[0, 0].tolist()))
    assert set(repeated[:-1].tolist()) <= set(gone)
    assert repeated[-1] not in gone


def test_the_oracle_on_numbers_worked_out_by_hand(oracle: ModuleType) -> None:
    # cosines: 0 and 1 and 2 alike, 3 across; 0 and 1 spare 2, 2 spares 1: sums 2, 1, 1 - 0, 0
    keys = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    powers = np.exp(np.array([2.0, 1.0, 0.0, 0.0]) / 4)
    assert oracle.redundancy(keys, 0.5) == pytest.approx(powers / powers.sum())
    # one query on rows 0 and 1 of three, window 1: odds 1 to e, pooled by 3
    seen = oracle.attention(np.ones((1, 1, 1)), np.array([[0.0], [1.0], [5.0]]), 1, 1, "max")
    assert seen == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e), 0.0])
    assert oracle.attention(np.ones((1, 1, 1)), np.array([[0.0], [1.0], [5.0]]), 1, 3, "max")[0] == seen[1]
