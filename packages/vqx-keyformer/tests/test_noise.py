"""Keyformer's noise: frozen by seed, layer, head and position, and never in the stored mass."""

import math

import mlx.core as mx
import numpy as np
import pytest
from vqx import Options, noise
from vqx.noise import BLOCK
from vqx.testing import Kept, Shape, cache_of, feed, remaining, same_bits, stream
from vqx_keyformer import KeyformerConfig, init_keyformer_state, keyformer_update
from vqx_keyformer.noise import gumbel, redrawn

TRUE = Options(queries="model")
LONG = gumbel(3, 1, 2, 0, 3 * BLOCK)


def test_the_same_place_has_the_same_noise_whatever_else_was_drawn() -> None:
    np.random.seed(1)
    mx.random.seed(1)
    noise._block.cache_clear()
    assert np.array_equal(gumbel(3, 1, 2, 0, 3 * BLOCK), LONG)


@pytest.mark.parametrize("other", [(4, 1), (3, 2), (2**40, 1)])
def test_another_seed_or_layer_has_other_noise(other: tuple[int, int]) -> None:
    assert (gumbel(*other, 2, 0, BLOCK) != LONG[:, :BLOCK]).mean() > 0.99


def test_heads_and_blocks_of_positions_have_noise_of_their_own() -> None:
    assert (LONG[0] != LONG[1]).mean() > 0.99
    assert (LONG[:, :BLOCK] != LONG[:, BLOCK : 2 * BLOCK]).mean() > 0.99


def test_noise_does_not_depend_on_the_number_of_heads() -> None:
    for heads in (1, 2, 9):
        assert np.array_equal(gumbel(3, 1, heads, 1000, 60)[:2], LONG[:heads, 1000:1060])


@pytest.mark.parametrize(
    ("start", "length"), [(0, 1), (5, 700), (1000, 60), (1023, 1), (1023, 2), (1024, 1), (1000, 2060)]
)
def test_noise_does_not_depend_on_where_the_stream_is_cut(start: int, length: int) -> None:
    assert np.array_equal(gumbel(3, 1, 2, start, length), LONG[:, start : start + length])


def test_noise_is_gumbel_distributed() -> None:
    draws = gumbel(0, 0, 16, 0, 16 * BLOCK).astype(np.float64)
    error = math.pi / math.sqrt(6 * draws.size)  # of the mean
    assert abs(draws.mean() - np.euler_gamma) < 4 * error
    assert draws.var() == pytest.approx(math.pi**2 / 6, rel=0.02)
    assert (draws < 0).mean() == pytest.approx(math.exp(-1), abs=0.004)
    assert np.isfinite(draws).all()


@pytest.mark.parametrize("noise", ["rank", "logit"])
@pytest.mark.parametrize("cuts", [[1100], [1000, 100], [600, 424, 1, 1, 74]])
def test_kept_rows_carry_the_noise_of_their_position_in_every_batch_slot(noise: str, cuts: list[int]) -> None:
    tokens = stream("topics", shape=Shape(1100, width=4))
    cache = cache_of("keyformer", TRUE, budget=300, noise=noise, seed=3)
    kept = remaining(feed(cache, tokens, cuts))
    assert kept.position.min() < BLOCK <= kept.position.max()
    frozen = gumbel(3, 0, 2, 0, 1100)
    for b, h in np.ndindex(2, 2):
        assert np.array_equal(kept.columns["noise"][b, h], frozen[h][kept.position[b, h]])


# the stored mass


def _mass(tau: float, budget: int, engine: Options) -> Kept:
    tokens = stream("topics", shape=Shape(60))
    return remaining(feed(cache_of("keyformer", engine, budget=budget, tau=tau), tokens, [30, 1, 29]))


@pytest.mark.parametrize("queries", ["keys", "centred-keys", "model"])
def test_noise_never_enters_the_stored_mass_while_nothing_is_evicted(queries: str) -> None:
    engine = Options(queries=queries)  # type: ignore[arg-type]
    clean, noisy = (_mass(tau, 60, engine).columns["mass"] for tau in (0.0, 1e6))
    assert np.array_equal(clean, noisy)
    # every query gives one share, and the very first row starts with one
    np.testing.assert_allclose(clean.sum(axis=2), 60, rtol=1e-5)


def test_noise_never_enters_the_stored_mass_while_the_same_rows_are_evicted() -> None:
    tokens = stream("topics", shape=Shape(90))
    interior = 0
    for b, h in np.ndindex(2, 2):
        clean, noisy = (init_keyformer_state(2, 12, 16, recent=4, tau=tau, seed=2) for tau in (0.0, 1e-4))
        for token in range(90):
            keys, values = (array[b, h, token : token + 1] for array in tokens[1:])
            clean, noisy = keyformer_update(clean, keys, values), keyformer_update(noisy, keys, values)
            one, other = np.array(clean.positions), np.array(noisy.positions)
            assert np.array_equal(one, other), "choose a smaller tau: the kept sets must agree"
            assert clean.scores is not None
            assert noisy.scores is not None
            assert same_bits(clean.scores, noisy.scores)
        interior += not np.array_equal(one, [0, 1, *range(80, 90)])
    assert interior == 4


def test_noise_in_the_ranking_does_change_the_rows_kept() -> None:
    clean, noisy = (_mass(tau, 20, TRUE).position for tau in (0.0, 8.0))
    assert not np.array_equal(clean, noisy)


def test_noise_in_the_logits_is_part_of_the_stored_mass() -> None:
    tokens = stream("topics", shape=Shape(60))
    masses = []
    for seed in (0, 1):
        cache = cache_of("keyformer", TRUE, budget=60, tau=1.0, noise="logit", seed=seed)
        masses.append(remaining(feed(cache, tokens, [60])).columns["mass"])
        np.testing.assert_allclose(masses[-1].sum(axis=2), 60, rtol=1e-5)
    assert np.abs(masses[0] - masses[1]).max() > 0.1


# tau


def test_tau_rises_in_a_line_and_is_held() -> None:
    config = KeyformerConfig(budget=20, tau_init=1.0, tau_end=3.0, anneal_steps=8)
    assert [config.temperature(step) for step in (0, 1, 4, 8, 9, 10**6)] == [1.0, 1.25, 2.0, 3.0, 3.0, 3.0]
    falling = KeyformerConfig(budget=20, tau_init=2.0, tau_end=0.0, anneal_steps=4)
    assert [falling.temperature(step) for step in (0, 1, 4, 5)] == [2.0, 1.5, 0.0, 0.0]


def test_tau_is_constant_without_steps_or_between_equal_ends() -> None:
    for config in (
        KeyformerConfig(budget=20, tau_init=1.5, tau_end=9.0, anneal_steps=0),
        KeyformerConfig(budget=20, tau_init=1.5, tau_end=1.5, anneal_steps=7),
    ):
        assert {config.temperature(step) for step in range(20)} == {1.5}


def test_the_tau_alias_wins_over_the_ramp() -> None:
    config = KeyformerConfig(budget=20, tau=0.0, tau_init=1.0, tau_end=3.0, anneal_steps=8)
    assert {config.temperature(step) for step in range(20)} == {0.0}
    alias, plain = (
        remaining(feed(cache_of("keyformer", TRUE, budget=20, **options), stream("topics"), [30, 34]))
        for options in ({"tau": 6.0, "tau_init": 0.5, "tau_end": 0.5}, {"tau_init": 6.0, "tau_end": 6.0})
    )
    assert np.array_equal(alias.position, plain.position)


def test_tau_in_the_ranking_follows_the_newest_position() -> None:
    # the ramp ends before the only cut, at 40 tokens: the same as the constant that it reaches
    ramp, end, start = (
        remaining(feed(cache_of("keyformer", TRUE, budget=20, **options), stream("topics"), [10, 30]))
        for options in (
            {"tau_init": 0.0, "tau_end": 7.8, "anneal_steps": 78},
            {"tau": 3.9},
            {"tau": 0.0},
        )
    )
    assert np.array_equal(ramp.position, end.position)
    assert not np.array_equal(ramp.position, start.position)


def test_tau_in_the_logits_starts_to_rise_with_the_second_generated_token() -> None:
    tokens = stream("topics", shape=Shape(34))
    ramp = {"tau_init": 0.5, "tau_end": 8.0, "anneal_steps": 2}

    def mass(cuts: list[int], **options: float) -> np.ndarray:
        cache = cache_of("keyformer", TRUE, budget=40, noise="logit", **options)
        return remaining(feed(cache, tokens, cuts)).columns["mass"]

    assert np.array_equal(mass([20, 10], **ramp), mass([20, 10], tau=0.5))
    assert np.array_equal(mass([20, 1], **ramp), mass([20, 1], tau=0.5))
    assert not np.allclose(mass([20, 1, 1], **ramp), mass([20, 1, 1], tau=0.5))


# redraw


def test_redrawn_noise_depends_on_seed_layer_head_and_start_and_not_on_other_heads() -> None:
    draw = redrawn(3, 1, 2, 40, 50)
    assert draw.shape == (2, 50)
    assert np.array_equal(redrawn(3, 1, 7, 40, 50)[:2], draw)
    assert (draw[0] != draw[1]).all()
    for other in ((4, 1, 2, 40), (3, 2, 2, 40), (3, 1, 2, 41)):
        assert (redrawn(*other, 50) != draw).mean() > 0.99
    assert (gumbel(3, 1, 2, 0, 50) != draw).mean() > 0.99


def test_redraw_repeats_itself_and_differs_from_frozen_noise() -> None:
    tokens = stream("topics")

    def mass(**options: object) -> np.ndarray:
        cache = cache_of("keyformer", TRUE, budget=64, tau=1.0, noise="logit", **options)
        kept = remaining(feed(cache, tokens, [20, 10, 1, 1, 32]))
        assert "noise" not in kept.columns or not options.get("redraw")
        return kept.columns["mass"]

    once = mass(redraw=True)
    assert np.array_equal(once, mass(redraw=True))
    assert not np.allclose(once, mass(redraw=False), atol=0.1)
    assert not np.allclose(once, mass(redraw=True, seed=1), atol=0.1)
    np.testing.assert_allclose(once.sum(axis=2), 64, rtol=1e-5)
