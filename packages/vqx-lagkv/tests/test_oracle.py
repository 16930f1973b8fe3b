"""Kept rows equal those of plain loops in float64."""

from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import Held, Options
from vqx.testing import Shape, cache_of, feed, remaining, stream
from vqx_lagkv.method import ranked

BAND = 1e-6
"""Gap of shares below which float32 may rank otherwise."""


@pytest.mark.parametrize("cadence", ["block", "token"])
@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        ([90], {"budget": 40, "n_sink": 4, "lag": 8}),
        ([90], {"budget": 21, "n_sink": 0, "lag": 5}),
        ([3, 40, 17, *[1] * 15], {"budget": 24, "n_sink": 2, "lag": 6}),
        ([*[1] * 40], {"budget": 14, "n_sink": 1, "lag": 4}),
    ],
    ids=["whole", "no sinks", "chunks", "tokens"],
)
def test_kept_rows_are_the_oracles(
    oracle: ModuleType, cadence: Any, blocks: list[int], options: dict[str, Any]
) -> None:
    compared = 0
    for name in ("gaussian", "topics", "dominant sink"):
        tokens = stream(name, 1, Shape(sum(blocks), batch=1))
        engine = Options(queries="model", cadence=cadence)
        cache = feed(cache_of("lagkv", engine, **options), tokens, blocks)
        cuts = blocks if cadence == "block" else [1] * sum(blocks)
        for head, position in enumerate(remaining(cache).position[0]):
            keys, values = (np.array(array, np.float64)[0, head] for array in tokens[1:])
            right, narrowest = oracle.kept(keys, values, blocks=cuts, **options)
            if narrowest > BAND:
                compared += 1
                assert position.tolist() == right
    assert compared >= 3


@pytest.mark.parametrize("make", [mx.array, np.array])
def test_rows_in_no_order_get_the_same_ranks(make: Any) -> None:
    tokens = stream("gaussian", shape=Shape(40))
    shuffled = np.random.default_rng(0).permutation(40)
    found = []
    for order in (np.arange(40), shuffled):
        rows = tuple(make(np.array(array)[:, :, order]) for array in tokens[1:])
        position = make(np.broadcast_to(order, (2, 2, 40)).astype(np.int32))
        found.append(np.array(ranked(Held({}, position, 39, lambda rows=rows: rows), 3, 6)))
    assert (found[0][..., shuffled] == found[1]).all()
    assert sorted(set(found[0][0, 0].tolist())) == pytest.approx([0, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1])
    assert (found[0][..., [0, 1, 2, *range(33, 40)]] == 1).all()


@pytest.mark.parametrize("make", [mx.array, np.array])
def test_a_channel_that_does_not_vary_is_left_unscaled_and_equals_rank_by_age(make: Any) -> None:
    rows = tuple(make(np.ones((1, 1, 12, 2), np.float32)) for _ in range(2))
    position = make(np.arange(12)[None, None])
    found = ranked(Held({}, position, 11, lambda: rows), 0, 4)
    assert np.array(found)[0, 0].tolist() == [0, 0.25, 0.5, 0.75, 0, 0.25, 0.5, 0.75, 1, 1, 1, 1]


def test_where_no_two_blocks_are_held_the_newest_rows_stay() -> None:
    for n in (2, 5, 9):
        rows = tuple(mx.ones((1, 1, n, 2)) for _ in range(2))
        found = ranked(Held({}, mx.arange(n)[None, None], n - 1, lambda rows=rows: rows), 3, 4)
        assert found.tolist() == [[[1.0] * n]]


def test_the_oracle_on_numbers_worked_out_by_hand(oracle: ModuleType) -> None:
    # behind: channel 0 spans 0 to 2, channel 1 spans 1 to 2; rows (1, 1) and (2, 4) become
    # (1/2, 0) and (1, 3), of deviations sqrt(1/8) and sqrt(2)
    block, behind = np.array([[1.0, 1.0], [2.0, 4.0]]), np.array([[0.0, 1.0], [2.0, 2.0]])
    share = 1 / (1 + np.exp(2**0.5 - 8**-0.5))
    assert oracle.shares(block, behind) == pytest.approx([share, 1 - share])
    rows = np.concatenate([block, behind, behind])
    assert oracle.ranked(rows, rows, 0, 2)[0] == [0, 1, 0, 1, 2, 2]
