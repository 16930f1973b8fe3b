"""The oracle against numbers worked out by hand; D = 1 throughout."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

# Key 1 sees row 0 alone: mass 1 + 1. Key 2 on rows 0 and 1: logits 0, ln 3: weights 1/4, 3/4.
# Mass when token 2 has been appended: 9/4, 3/4, 0.
KEYS = np.array([[0.0], [math.log(3)], [1.0]])
NOISE = np.array([-2.0, 0.0, 1.0])


def test_adapted_tau_is_annealed_by_the_incoming_position(oracle: ModuleType) -> None:
    kept = oracle.adapted(KEYS, NOISE, budget=2, tau_init=1.0, tau_end=3.0, anneal_steps=4)
    # t = 2: tau = 1 + 2 * 2/4 = 2. Scores 9/4 - 4 = -7/4, 3/4, 2: row 0 goes, gap 5/2.
    assert kept.positions == [1, 2]
    assert kept.narrowest == pytest.approx(2.5)
    # The statistic is the clean mass.
    np.testing.assert_allclose(kept.statistic, [0.75, 0.0], rtol=1e-12)


def test_adapted_tau_is_held_after_the_ramp(oracle: ModuleType) -> None:
    kept = oracle.adapted(KEYS, NOISE, budget=2, tau_init=1.0, tau_end=3.0, anneal_steps=1)
    # tau = 3: 9/4 - 6 = -15/4 against 3/4.
    assert kept.narrowest == pytest.approx(4.5)


def test_adapted_tau_counts_positions_and_not_stored_rows(oracle: ModuleType) -> None:
    keys = np.array([[0.0], [math.log(3)], [1.0], [0.0]])
    noise = np.array([-2.0, 0.0, 1.0, 1.0])
    kept = oracle.adapted(keys, noise, budget=2, tau_init=1.0, tau_end=5.0, anneal_steps=4)
    # t = 2: tau 3: 9/4 - 6 = -15/4, 3/4, 3: row 0 goes, gap 9/2. Key 3 is 0: mass 5/4, 1/2, 0.
    # t = 3: tau 4: 5/4, 1/2 + 4, 4: row 1 goes, gap 11/4. With tau 3 the gap would be 7/4.
    assert kept.positions == [2, 3]
    assert kept.narrowest == pytest.approx(2.75)


def test_adapted_without_steps_tau_is_constant(oracle: ModuleType) -> None:
    kept = oracle.adapted(KEYS, NOISE, budget=2, tau_init=1.0, tau_end=3.0, anneal_steps=0)
    # tau = 1: 9/4 - 2 = 1/4, 3/4, 1.
    assert kept.positions == [1, 2]
    assert kept.narrowest == pytest.approx(0.5)


def test_adapted_tau_alias_wins_and_zero_ranks_by_clean_mass(oracle: ModuleType) -> None:
    kept = oracle.adapted(KEYS, NOISE, budget=2, tau_init=1.0, tau_end=3.0, tau=0.0)
    # 9/4, 3/4, 0: the newest goes, as it always does in the plain heavy-hitter form.
    assert kept.positions == [0, 1]
    assert kept.narrowest == pytest.approx(0.75)
    keys = np.random.default_rng(0).normal(size=(60, 4))
    noise = np.random.default_rng(1).gumbel(size=60)
    assert oracle.adapted(keys, noise, budget=7, tau=0.0).positions == list(range(7))
    assert oracle.adapted(keys, noise, budget=7, tau=1.0).positions != list(range(7))


def test_adapted_sinks_and_recent_rows_are_safe(oracle: ModuleType) -> None:
    # tau = 2: scores -7/4, 3/4, 2. Sink 0: row 1 goes, gap 5/4.
    sink = oracle.adapted(KEYS, NOISE, budget=2, n_sink=1, tau=2.0)
    assert sink.positions == [0, 2]
    assert sink.narrowest == pytest.approx(1.25)
    # tau = 0 and one recent row: row 1 goes, not row 2.
    recent = oracle.adapted(KEYS, NOISE, budget=2, recent=1, tau=0.0)
    assert recent.positions == [0, 2]
    assert recent.narrowest == pytest.approx(1.5)


def test_adapted_noise_follows_the_position_and_not_the_slot(oracle: ModuleType) -> None:
    keys = np.array([[0.0], [math.log(3)], [1.0], [0.0]])
    kept = oracle.adapted(keys, np.array([-2.0, 0.0, 1.0, -3.0]), budget=2, tau=1.0)
    # Token 2: 1/4, 3/4, 1: row 0 goes. Key 3 is 0: mass 3/4 + 1/2 = 5/4, 1/2, 0.
    # Token 3: 5/4 + 0, 1/2 + 1, 0 - 3: row 3 goes. By slot it would be 5/4 - 2, 1/2, 1: row 1.
    assert kept.positions == [1, 2]
    np.testing.assert_allclose(kept.statistic, [1.25, 0.5], rtol=1e-12)
    assert kept.narrowest == pytest.approx(0.5)


def test_exact_ties_evict_the_oldest_and_do_not_narrow(oracle: ModuleType) -> None:
    # Token 1: mass 2, 0; noise -2, 0 at tau 1: 0 and 0.
    kept = oracle.adapted(KEYS[:2], NOISE[:2], budget=1, tau=1.0)
    assert kept.positions == [1]
    assert kept.narrowest == math.inf


def test_paper_noise_enters_the_logit_after_the_scale(oracle: ModuleType) -> None:
    queries = np.array([[[0.0], [2.0]], [[0.0], [0.0]]])
    noise = np.array([0.0, math.log(2)])
    kept = oracle.paper(
        queries, KEYS[:2], noise, budget=1, tau_init=1.0, tau_end=1.0, anneal_steps=0,
        prompt_length=2, scale=0.5, blocks=[2],
    )  # fmt: skip
    # Query 0: row 0 alone, 1. Query 1, head 0: x = 0, ln 3; with noise ln 2: odds 1, 6.
    # Head 1: x = 0; odds 1, 2. Mean (1/7 + 1/3)/2 = 5/21, (6/7 + 2/3)/2 = 16/21.
    assert kept.positions == [0]
    np.testing.assert_allclose(kept.statistic, [26 / 21], rtol=1e-12)
    assert kept.narrowest == pytest.approx(10 / 21)


@pytest.mark.parametrize(
    ("prompt_length", "share_1", "share_2"),
    [
        # tau 1/2 doubles the noise: odds 1, 4 and 1, 4, 9; tau 1: 1, 2, 3; tau 3/2 at t = 2.
        (3, [1 / 5, 4 / 5], [1 / 14, 4 / 14, 9 / 14]),  # prompt only
        (2, [1 / 5, 4 / 5], [1 / 14, 4 / 14, 9 / 14]),  # token 2 is t = 0
        (1, [1 / 5, 4 / 5], [1 / 6, 2 / 6, 3 / 6]),  # token 2 is t = 1
    ],
)
def test_paper_tau_starts_to_rise_after_the_prompt(
    oracle: ModuleType, prompt_length: int, share_1: list[float], share_2: list[float]
) -> None:
    noise = np.array([0.0, math.log(2), math.log(3)])
    zeros = np.zeros((1, 3, 1))
    kept = oracle.paper(
        zeros, zeros[0], noise, budget=3, tau_init=0.5, tau_end=1.5, anneal_steps=2,
        prompt_length=prompt_length, scale=1.0, blocks=[1, 2],
    )  # fmt: skip
    mass = [1 + share_1[0] + share_2[0], share_1[1] + share_2[1], share_2[2]]
    np.testing.assert_allclose(kept.statistic, mass, rtol=1e-12)


def test_paper_cuts_after_each_block_and_spares_sinks_and_recent_rows(oracle: ModuleType) -> None:
    noise = np.array([0.0, math.log(2), math.log(3)])
    zeros = np.zeros((1, 3, 1))

    def kept(blocks: list[int], n_sink: int = 0, recent: int = 0) -> Any:
        answer = oracle.paper(
            zeros, zeros[0], noise, budget=1, n_sink=n_sink, recent=recent, tau_init=1.0,
            tau_end=1.0, anneal_steps=0, prompt_length=3, scale=1.0, blocks=blocks,
        )  # fmt: skip
        return answer.positions, answer.narrowest

    # One block: 1 + 1/3 + 1/6 = 3/2, 2/3 + 1/3 = 1, 1/2.
    assert kept([3]) == ([0], pytest.approx(0.5))
    # Two blocks: 4/3 against 2/3; then rows 0 and 2, odds 1, 3: 4/3 + 1/4 against 3/4.
    assert kept([2, 1]) == ([0], pytest.approx(2 / 3))
    # One by one: 4/3 against 2/3, the same again.
    assert kept([1, 1, 1]) == ([0], pytest.approx(2 / 3))
    assert kept([3], recent=1) == ([2], math.inf)
    assert kept([3], n_sink=1) == ([0], math.inf)
