"""The oracle against numbers worked out by hand; D = 1 and scale 1 throughout."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest

E = math.e
LN2 = math.log(2)

# Newest key on rows 0, 1, 2. Head 0: odds 1, 3, e. Head 1: odds 1, 1/3, e.
KEYS = np.array([[[0.0], [math.log(3)], [1.0]], [[0.0], [math.log(3)], [-1.0]]])


def test_adapted_heads_rank_alone(oracle: ModuleType) -> None:
    first, second = oracle.adapted(KEYS, budget=2, heads="each")
    assert first.positions == [1, 2]
    assert first.narrowest == pytest.approx(2 / (4 + E))
    assert second.positions == [0, 2]
    assert second.narrowest == pytest.approx((2 / 3) / (4 / 3 + E))
    assert first.statistic.shape == (0,)


def test_adapted_layer_averages_all_heads(oracle: ModuleType) -> None:
    first, second = oracle.adapted(KEYS, budget=2, heads="layer")
    # Row 0: (1/(4 + e) + 1/(4/3 + e))/2 = 0.198; row 1: (3/(4 + e) + (1/3)/(4/3 + e))/2 = 0.264.
    assert first.positions == second.positions == [1, 2]
    assert first.narrowest == pytest.approx((2 / (4 + E) - (2 / 3) / (4 / 3 + E)) / 2)


def test_adapted_a_small_newest_key_goes_unless_it_is_shielded(oracle: ModuleType) -> None:
    # Newest key 1/2 on keys 2, 1, 1/2: logits 1, 1/2, 1/4.
    keys = np.array([[[2.0], [1.0], [0.5]]])
    z = E + math.exp(0.5) + math.exp(0.25)
    (free,) = oracle.adapted(keys, budget=2, keep_newest=False)
    assert free.positions == [0, 1]
    assert free.narrowest == pytest.approx((math.exp(0.5) - math.exp(0.25)) / z)
    (shielded,) = oracle.adapted(keys, budget=2)
    assert shielded.positions == [0, 2]
    assert shielded.narrowest == pytest.approx((E - math.exp(0.5)) / z)


def test_exact_ties_evict_the_oldest_that_is_no_sink(oracle: ModuleType) -> None:
    zeros = np.zeros((1, 3, 1))
    (plain,) = oracle.adapted(zeros, budget=2)
    assert plain.positions == [1, 2]
    assert plain.narrowest == math.inf
    (sink,) = oracle.adapted(zeros, budget=2, n_sink=1)
    assert sink.positions == [0, 2]
    with pytest.raises(ValueError, match="protected"):
        oracle.adapted(zeros, budget=2, n_sink=2)


# True queries on keys 0, 1, 2: a query ln r gives the odds 1, r, r*r.
ROWS = np.array([[0.0], [1.0], [2.0]])


def test_paper_means_over_the_group_or_over_the_layer(oracle: ModuleType) -> None:
    # Head 0: queries 0 and ln 2: (1/3 + 1/7)/2 = 10/42, (1/3 + 2/7)/2 = 13/42, 19/42.
    # Head 1: queries 0 and -ln 2: 19/42, 13/42, 10/42; as the newest is shielded row 1 goes.
    # Layer: 29/84, 26/84, 29/84: row 1 goes.
    queries = np.zeros((2, 2, 3, 1))
    queries[0, 1, 2] = LN2
    queries[1, 1, 2] = -LN2
    keys = np.stack([ROWS, ROWS])
    first, second = oracle.paper(queries, keys, budget=2, heads="each", scale=1.0, blocks=[3])
    assert first.positions == [1, 2]
    assert first.narrowest == pytest.approx(3 / 42)
    assert second.positions == [0, 2]
    assert second.narrowest == pytest.approx(6 / 42)
    first, second = oracle.paper(queries, keys, budget=2, heads="layer", scale=1.0, blocks=[3])
    assert first.positions == second.positions == [0, 2]
    assert first.narrowest == pytest.approx(3 / 84)


def test_paper_the_newest_row_may_go(oracle: ModuleType) -> None:
    # Query -ln 2: 4/7, 2/7, 1/7.
    queries = np.full((1, 1, 3, 1), -LN2)
    (kept,) = oracle.paper(queries, ROWS[None], budget=2, keep_newest=False, scale=1.0, blocks=[3])
    assert kept.positions == [0, 1]
    assert kept.narrowest == pytest.approx(1 / 7)


def test_paper_only_the_last_query_of_a_block_counts(oracle: ModuleType) -> None:
    # Query 1 = ln 2 would drop row 0; in one block of three only query 2 = -ln 2 speaks.
    queries = np.array([0.0, LN2, -LN2]).reshape(1, 1, 3, 1)
    (whole,) = oracle.paper(queries, ROWS[None], budget=1, scale=1.0, keep_newest=False, blocks=[3])
    assert whole.positions == [0]
    assert whole.narrowest == pytest.approx(2 / 7)
    # Two blocks: rows 0, 1 get 1/3, 2/3: row 0 goes. Then rows 1, 2 get 2/3, 1/3: row 2 goes.
    (parts,) = oracle.paper(queries, ROWS[None], budget=1, scale=1.0, keep_newest=False, blocks=[2, 1])
    assert parts.positions == [1]
    assert parts.narrowest == pytest.approx(1 / 3)
