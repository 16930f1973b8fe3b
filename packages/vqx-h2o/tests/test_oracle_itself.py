"""The oracle against numbers worked out by hand; D = 1 and scale 1 throughout."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest

# Key 2 on the stored rows 0 and 1: logits 0 and ln 3, weights 1/4 and 3/4.
# Key 1 sees row 0 alone: weight 1. Row 0 starts with mass 1.
KEYS = np.array([[0.0], [math.log(3)], [1.0]])

# True queries on rows 0, 1, 2 (keys 0, 1, 2):
# query 1 = ln 3: odds 1, 3 -> 1/4, 3/4; query 2 = ln 2: odds 1, 2, 4 -> 1/7, 2/7, 4/7.
TRUE_KEYS = np.array([[0.0], [1.0], [2.0]])
TRUE_QUERIES = np.array([[[0.0], [math.log(3)], [math.log(2)]]])


def test_adapted_mass_by_hand(oracle: ModuleType) -> None:
    kept = oracle.adapted(KEYS, budget=3)
    # After key 1: 1 + 1, 0. After key 2: 2 + 1/4, 3/4, 0.
    assert kept.positions == [0, 1, 2]
    np.testing.assert_allclose(kept.statistic, [2.25, 0.75, 0.0], rtol=1e-12)
    assert kept.narrowest == math.inf


def test_adapted_evicts_the_least_unprotected_mass(oracle: ModuleType) -> None:
    kept = oracle.adapted(KEYS, budget=2, recent=1)
    # Row 2 is safe; of 2.25 and 0.75 row 1 goes.
    assert kept.positions == [0, 2]
    np.testing.assert_allclose(kept.statistic, [2.25, 0.0], rtol=1e-12)
    assert kept.narrowest == pytest.approx(1.5)
    assert oracle.adapted(KEYS, budget=2, grace=1).positions == [0, 2]
    assert oracle.adapted(KEYS, budget=2, n_sink=1, recent=1).positions == [0, 2]
    with pytest.raises(ValueError, match="protected"):
        oracle.adapted(KEYS, budget=2, n_sink=2, recent=1)


def test_adapted_decay_comes_before_the_share(oracle: ModuleType) -> None:
    kept = oracle.adapted(KEYS, budget=2, recent=1, decay=0.25)
    # After key 1: 1/4 + 1 = 5/4. After key 2: 5/16 + 1/4 = 9/16 and 3/4: row 0 goes.
    assert kept.positions == [1, 2]
    np.testing.assert_allclose(kept.statistic, [0.75, 0.0], rtol=1e-12)
    assert kept.narrowest == pytest.approx(3 / 16)


def test_adapted_plain_form_freezes_to_the_first_budget_tokens(oracle: ModuleType) -> None:
    keys = np.random.default_rng(0).normal(size=(60, 4))
    kept = oracle.adapted(keys, budget=7)
    assert kept.positions == list(range(7))
    assert kept.narrowest > 0
    # Each of the 59 later keys adds a share of 1 to the initial 1; the evicted rows had mass 0.
    assert kept.statistic.sum() == pytest.approx(60)
    assert oracle.adapted(keys, budget=7, recent=3).positions != list(range(7))


def test_exact_ties_evict_the_oldest_and_do_not_narrow(oracle: ModuleType) -> None:
    # Decay 0 leaves the last query's share alone: exactly 1/2 and 1/2.
    zeros = np.zeros((2, 1))
    kept = oracle.paper(zeros[None], zeros, budget=1, decay=0.0, scale=1.0, blocks=[2])
    assert kept.positions == [1]
    assert kept.narrowest == math.inf


def test_paper_mass_by_hand_averaged_over_the_group(oracle: ModuleType) -> None:
    queries = np.concatenate([np.zeros((1, 3, 1)), TRUE_QUERIES])
    kept = oracle.paper(queries, TRUE_KEYS, budget=2, scale=1.0, blocks=[3])
    # Head 0 is uniform. Query 1: (1/2 + 1/4)/2 = 3/8, 5/8.
    # Query 2: (1/3 + 1/7)/2 = 5/21, (1/3 + 2/7)/2 = 13/42, (1/3 + 4/7)/2 = 19/42: row 2 goes.
    assert kept.positions == [0, 1]
    np.testing.assert_allclose(kept.statistic, [1 + 3 / 8 + 5 / 21, 5 / 8 + 13 / 42], rtol=1e-12)
    assert kept.narrowest == pytest.approx(5 / 8 + 13 / 42 - 19 / 42)


def test_paper_normalise_divides_by_the_queries_that_could_see_the_row(oracle: ModuleType) -> None:
    # Mass 1 + 1/4 + 1/7 = 39/28, 3/4 + 2/7 = 29/28, 4/7 = 16/28: raw, row 2 goes.
    raw = oracle.paper(TRUE_QUERIES, TRUE_KEYS, budget=2, scale=1.0, blocks=[3])
    assert raw.positions == [0, 1]
    assert raw.narrowest == pytest.approx(13 / 28)
    # By 3, 2 and 1 queries: 26/56, 29/56, 32/56: row 0 goes. The mass itself stays raw.
    fair = oracle.paper(TRUE_QUERIES, TRUE_KEYS, budget=2, scale=1.0, normalise="seen", blocks=[3])
    assert fair.positions == [1, 2]
    np.testing.assert_allclose(fair.statistic, [29 / 28, 16 / 28], rtol=1e-12)
    assert fair.narrowest == pytest.approx(3 / 56)


def test_paper_decay_applies_once_per_query(oracle: ModuleType) -> None:
    kept = oracle.paper(TRUE_QUERIES, TRUE_KEYS, budget=2, decay=0.5, scale=1.0, blocks=[3])
    # Query 1: 1/2 + 1/4 = 3/4, 3/4. Query 2: 3/8 + 1/7 = 29/56, 3/8 + 2/7 = 37/56, 32/56.
    assert kept.positions == [1, 2]
    np.testing.assert_allclose(kept.statistic, [37 / 56, 32 / 56], rtol=1e-12)
    assert kept.narrowest == pytest.approx(3 / 56)


def test_paper_cuts_after_each_block(oracle: ModuleType) -> None:
    kept = oracle.paper(TRUE_QUERIES, TRUE_KEYS, budget=1, scale=1.0, blocks=[2, 1])
    # First cut: 5/4 against 3/4. Then query 2 on rows 0 and 2: odds 1, 4: 29/20 against 4/5.
    assert kept.positions == [0]
    np.testing.assert_allclose(kept.statistic, [29 / 20], rtol=1e-12)
    assert kept.narrowest == pytest.approx(0.5)
    recent = oracle.paper(TRUE_QUERIES, TRUE_KEYS, budget=1, recent=1, scale=1.0, blocks=[2, 1])
    assert recent.positions == [2]
    with pytest.raises(ValueError, match="do not cut"):
        oracle.paper(TRUE_QUERIES, TRUE_KEYS, budget=1, scale=1.0, blocks=[2])


def test_paper_never_evicts_a_sink(oracle: ModuleType) -> None:
    kept = oracle.paper(TRUE_QUERIES, TRUE_KEYS, budget=2, n_sink=1, decay=0.5, scale=1.0, blocks=[3])
    # Mass 29/56, 37/56, 32/56 as above, but row 0 is a sink: row 2 goes.
    assert kept.positions == [0, 1]
    assert kept.narrowest == pytest.approx(5 / 56)
