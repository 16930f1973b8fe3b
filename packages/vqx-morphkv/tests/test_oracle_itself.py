"""The oracle against numbers worked out by hand; D = 1 and scale 1 throughout."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

E = math.e


def test_adapted_window_of_one_by_hand(oracle: ModuleType) -> None:
    keys = np.array([[0.0], [math.log(3)], [1.0]])
    kept = oracle.adapted(keys, budget=2, window=1)
    # Key 2 on rows 0, 1, 2, itself included: odds 1, 3, e.
    assert kept.positions == [1, 2]
    assert kept.narrowest == pytest.approx(2 / (4 + E))
    assert kept.statistic.shape == (0,)


def test_adapted_is_the_mean_of_the_window_over_all_rows(oracle: ModuleType) -> None:
    keys = np.array([[0.0], [math.log(3)], [1.0], [-1.0]])
    # Key 2 on all four rows, the newer row 3 included: odds 1, 3, e, 1/e.
    # Key 3: odds 1, 1/3, 1/e, e.
    z2, z3 = 4 + E + 1 / E, 4 / 3 + E + 1 / E
    one = oracle.adapted(keys, budget=3, window=1)
    # 1/z3, (1/3)/z3, (1/e)/z3: row 1 is least, then row 2.
    assert one.positions == [0, 2, 3]
    assert one.narrowest == pytest.approx((1 / E - 1 / 3) / z3)
    two = oracle.adapted(keys, budget=3, window=2)
    # (1/z2 + 1/z3)/2 = 0.1837 against (3/z2 + (1/3)/z3)/2 = 0.2494: row 0 is least.
    assert two.positions == [1, 2, 3]
    assert two.narrowest == pytest.approx((2 / z2 - (2 / 3) / z3) / 2)


def test_adapted_sinks_are_safe_and_ties_evict_the_oldest(oracle: ModuleType) -> None:
    # Zero keys: every weight is exactly 1/4.
    zeros = np.zeros((4, 1))
    assert oracle.adapted(zeros, budget=3, window=1).positions == [1, 2, 3]
    kept = oracle.adapted(zeros, budget=3, n_sink=1, window=1)
    assert kept.positions == [0, 2, 3]
    assert kept.narrowest == math.inf
    with pytest.raises(ValueError, match="protected"):
        oracle.adapted(zeros, budget=3, n_sink=1, window=3)


def test_adapted_keeps_everything_within_the_budget(oracle: ModuleType) -> None:
    kept = oracle.adapted(np.ones((3, 1)), budget=3, window=2)
    assert kept.positions == [0, 1, 2]
    assert kept.narrowest == math.inf


# Old rows 0 and 1 have keys 0 and 1, so a query ln r gives them the odds 1 : r. The window's own
# keys are 9: were they not left out of the softmax, every number below would change.


def weight_queries(first_weights: list[list[float]]) -> npt.NDArray[np.float64]:
    """[G, 2 + window, 1]: queries giving row 0 the listed weight, [G][window], row 1 the rest."""
    odds = np.array([[(1 - a) / a for a in head] for head in first_weights])
    return np.pad(np.log(odds), ((0, 0), (2, 0)))[:, :, None]


def run(oracle: ModuleType, weights: list[list[float]], fuse: str, group: str) -> Any:
    window = len(weights[0])
    keys = np.array([[0.0], [1.0]] + [[9.0]] * window)
    return oracle.paper(
        weight_queries(weights), keys, budget=window + 1, window=window, fuse=fuse, group=group,
        scale=1.0, blocks=[2 + window],
    )  # fmt: skip


def test_paper_sum_and_max_over_the_window(oracle: ModuleType) -> None:
    weights = [[0.9, 0.25, 0.25]]
    # Sum 1.4 against 0.1 + 0.75 + 0.75 = 1.6: row 0 goes.
    kept = run(oracle, weights, "sum", "max")
    assert kept.positions == [1, 2, 3, 4]
    assert kept.narrowest == pytest.approx(0.2)
    # Max 0.9 against 0.75: row 1 goes.
    kept = run(oracle, weights, "max", "max")
    assert kept.positions == [0, 2, 3, 4]
    assert kept.narrowest == pytest.approx(0.15)


def test_paper_group_max_or_summed_logits(oracle: ModuleType) -> None:
    # One query, two heads: row 0 gets 2/3 and 1/4, row 1 gets 1/3 and 3/4.
    # Max: 2/3 against 3/4, gap 1/12. Logits -ln 2 + ln 3: odds 1, 3/2: 2/5 against 3/5.
    weights = [[2 / 3], [1 / 4]]
    assert run(oracle, weights, "sum", "max").positions == [1, 2]
    assert run(oracle, weights, "sum", "max").narrowest == pytest.approx(1 / 12)
    assert run(oracle, weights, "sum", "logits").positions == [1, 2]
    assert run(oracle, weights, "sum", "logits").narrowest == pytest.approx(1 / 5)


def test_paper_group_max_is_the_greatest_weight(oracle: ModuleType) -> None:
    # Old rows 0, 1, 2 with keys 0, 1, 2; heads ln 2 and -ln 2: odds 1, 2, 4 and 4, 2, 1.
    # Max 4/7, 2/7, 4/7: row 1 goes. (The least weights, 1/7, 2/7, 1/7, would drop row 0.)
    queries = np.zeros((2, 4, 1))
    queries[:, 3, 0] = math.log(2), -math.log(2)
    keys = np.array([[0.0], [1.0], [2.0], [9.0]])
    kept = oracle.paper(queries, keys, budget=3, window=1, fuse="sum", group="max", scale=1.0, blocks=[4])
    assert kept.positions == [0, 2, 3]
    assert kept.narrowest == pytest.approx(2 / 7)


def test_paper_takes_the_group_max_before_it_fuses_the_window(oracle: ModuleType) -> None:
    # Three heads, two queries. Max per query: row 0 0.9 + 0.9 = 1.8, row 1 0.75 + 0.75 = 1.5.
    # (The other order: max of 1.15, 0.75, 1.4 = 1.4 against max of 0.85, 1.25, 0.6, gap 0.15.)
    kept = run(oracle, [[0.9, 0.25], [0.25, 0.5], [0.5, 0.9]], "sum", "max")
    assert kept.positions == [0, 2, 3]
    assert kept.narrowest == pytest.approx(0.3)


def test_paper_nothing_accumulates_between_blocks(oracle: ModuleType) -> None:
    # Row 0's key is 0, row 1's is 1, row 2's 2, row 3's 9. Window 1, budget 2.
    # After token 2 (query -ln 2): rows 0, 1 get 2/3, 1/3: row 1 goes, gap 1/3.
    # After token 3 (query ln 2): old rows 0, 2 have odds 1, 4: row 0 goes, gap 3/5.
    queries = np.array([[[0.0], [0.0], [-math.log(2)], [math.log(2)]]])
    keys = np.array([[0.0], [1.0], [2.0], [9.0]])
    kept = oracle.paper(queries, keys, budget=2, window=1, fuse="sum", group="max", scale=1.0, blocks=[3, 1])
    assert kept.positions == [2, 3]
    assert kept.narrowest == pytest.approx(1 / 3)
    assert kept.statistic.shape == (0,)
