"""Keyformer against an independent oracle in float64: the rows kept, their positions and their mass."""

from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from vqx import Options
from vqx.testing import STREAMS, Shape, cache_of, feed, remaining, same_bits, stream
from vqx_keyformer import init_keyformer_state, keyformer_update, keyformer_update_batched
from vqx_keyformer.noise import gumbel, redrawn

pytestmark = pytest.mark.filterwarnings("ignore:keyformer with recent=0")

BAND = 5e-5
"""Float32 cannot be asked to order scores that lie closer: they reach 100 with tau 8."""

MASS = {"rtol": 1e-5, "atol": 1e-5}
"""Up to 200 shares below 1, each off by some 1e-7 of itself."""

ADAPTED = Options(queries="keys", cadence="token")

thorough = settings(
    max_examples=300, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class Case(NamedTuple):
    options: dict[str, Any]
    blocks: list[int]
    stream: str
    seed: int
    width: int


@st.composite
def adapted_cases(draw: st.DrawFn) -> Case:
    options = _options(draw, tau=[None, None, 0.0, 0.3, 8.0], ends=[0.0, 0.5, 1.0, 4.0])
    blocks = draw(st.lists(st.integers(1, 12), max_size=5))
    blocks += draw(st.permutations([options["budget"] + 1, 1, 1]))
    return _case(draw, options, blocks)


@st.composite
def paper_cases(draw: st.DrawFn) -> Case:
    """Chunks of a prompt, then single tokens, since tau rises with the tokens that were generated."""
    options = _options(draw, tau=[None, None, 0.5, 2.0], ends=[0.5, 1.0, 2.0, 4.0])
    prompt = draw(st.lists(st.integers(2, 12), max_size=4))
    prompt += draw(st.permutations([*prompt, options["budget"] + 1]))
    return _case(draw, options, prompt + [1] * draw(st.integers(0, 20)))


def _options(draw: st.DrawFn, tau: list[float | None], ends: list[float]) -> dict[str, Any]:
    options: dict[str, Any] = {name: draw(st.integers(0, 4)) for name in ("n_sink", "recent")}
    options["budget"] = sum(options.values()) + draw(st.integers(1, 6))
    options["tau"] = draw(st.sampled_from(tau))
    options["tau_init"], options["tau_end"] = (draw(st.sampled_from(ends)) for _ in range(2))
    options["anneal_steps"] = draw(st.sampled_from([0, 1, 7, 30, 256]))
    options["seed"] = draw(st.integers(0, 9))
    return options


def _case(draw: st.DrawFn, options: dict[str, Any], blocks: list[int]) -> Case:
    width = draw(st.sampled_from([1, 4, 16]))
    return Case(options, blocks, draw(st.sampled_from(sorted(STREAMS))), draw(st.integers(0, 2**32)), width)


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _run(
    keys: mx.array, values: mx.array, blocks: list[int], options: dict[str, Any], layer: int = 0
) -> tuple[Any, ...]:
    held: tuple[Any, ...] = (None, None, None, None, None, 0)
    for length in blocks:
        *rows, seen = held
        new = slice(seen, seen + length)
        held = keyformer_update_batched(
            *rows, keys[..., new, :], values[..., new, :], next_pos=seen, layer=layer, **options
        )
    return held


@thorough
@given(adapted_cases(), st.integers(0, 1))
@example(Case({"budget": 1, "n_sink": 0, "tau": 1.0}, [3, 1, 4], "gaussian", 0, 4), 0)
def test_the_adapted_form_keeps_the_oracles_rows_and_mass(oracle: ModuleType, case: Case, layer: int) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), heads=3, group=1, width=case.width))
    noise = gumbel(case.options.get("seed", 0), layer, 3, 0, tokens.length)
    options = _without(case.options, "seed")
    answers = [
        [oracle.adapted(np.array(head), noise[h], **options) for h, head in enumerate(row)]
        for row in tokens.keys
    ]
    assume(all(kept.narrowest > BAND for row in answers for kept in row))
    keys, values, scores, drawn, positions, seen = _run(
        tokens.keys, tokens.values, case.blocks, case.options, layer
    )
    assert seen == tokens.length
    assert scores.dtype == drawn.dtype == mx.float32
    for b, row in enumerate(answers):
        for h, kept in enumerate(row):
            assert positions[b, h].tolist() == kept.positions
            np.testing.assert_allclose(np.array(scores[b, h]), kept.statistic, **MASS)
            assert np.array_equal(np.array(drawn[b, h]), noise[h][kept.positions])
            assert same_bits(keys[b, h], tokens.keys[b, h][positions[b, h]])
            assert same_bits(values[b, h], tokens.values[b, h][positions[b, h]])
    if layer == 0:
        rows = remaining(feed(cache_of("keyformer", ADAPTED, **case.options), tokens, case.blocks))
        assert np.array_equal(rows.position, np.array(positions))
        np.testing.assert_allclose(rows.columns["mass"], np.array(scores), **MASS)


@settings(thorough, max_examples=40)
@given(adapted_cases())
def test_one_sequence_or_head_at_a_time_is_bit_for_bit_all_at_once(case: Case) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), heads=3, group=1, width=case.width))
    together = _run(tokens.keys, tokens.values, case.blocks, case.options)
    for b in range(2):
        sequence = _run(tokens.keys[b], tokens.values[b], case.blocks, case.options)
        state = init_keyformer_state(head_dim=case.width, **case.options)
        for length in case.blocks:
            new = slice(state.next_pos, state.next_pos + length)
            state = keyformer_update(state, tokens.keys[b, 0, new], tokens.values[b, 0, new])
        # the noise of a head alone is that of head 0
        head = state.keys, state.values, state.scores, state.gumbel, state.positions
        for whole, row, alone in zip(together[:-1], sequence, head, strict=False):
            assert alone is not None
            assert same_bits(row, whole[b])
            assert same_bits(alone, whole[b, 0])


@thorough
@given(paper_cases(), st.integers(1, 3))
def test_noise_in_the_logits_keeps_the_oracles_rows_and_mass(
    oracle: ModuleType, case: Case, group: int
) -> None:
    shape = Shape(sum(case.blocks), batch=1, group=group, width=case.width)
    tokens = stream(case.stream, case.seed, shape)
    queries = np.array(tokens.queries).reshape(2, group, tokens.length, case.width)
    noise = gumbel(case.options["seed"], 0, 2, 0, tokens.length)
    options = _without(case.options, "seed", "tau")
    if (tau := case.options["tau"]) is not None:
        options |= {"tau_init": tau, "tau_end": tau}
    options |= {"scale": case.width**-0.5, "blocks": case.blocks}
    options["prompt_length"] = sum(length for length in case.blocks if length > 1)
    answers = [
        oracle.paper(q, k, g, **options)
        for q, k, g in zip(queries, np.array(tokens.keys)[0], noise, strict=True)
    ]
    assume(all(kept.narrowest > BAND for kept in answers))
    cache = cache_of("keyformer", Options(queries="model"), noise="logit", **case.options)
    rows = remaining(feed(cache, tokens, case.blocks))
    for h, kept in enumerate(answers):
        assert rows.position[0, h].tolist() == kept.positions
        np.testing.assert_allclose(rows.columns["mass"][0, h], kept.statistic, **MASS)


def test_redrawn_noise_is_another_for_each_block_of_queries(oracle: ModuleType) -> None:
    tokens = stream("topics", shape=Shape(30, batch=2, group=3))
    options = {"budget": 40, "tau": 1.5, "seed": 5, "noise": "logit", "redraw": True}
    rows = remaining(feed(cache_of("keyformer", Options(queries="model"), **options), tokens, [18, 12]))
    draws = redrawn(5, 0, 2, 0, 18), redrawn(5, 0, 2, 18, 30)
    assert not np.array_equal(draws[0], draws[1][:, :18])
    engine = {"tau_init": 1.5, "tau_end": 1.5, "anneal_steps": 0, "scale": 0.25, "budget": 40}
    for b, h in np.ndindex(2, 2):
        queries = np.array(tokens.queries[b, 3 * h : 3 * h + 3])
        keys = np.array(tokens.keys[b, h])

        def mass(stop: int, noise: Any, queries: Any = queries, keys: Any = keys) -> Any:
            answer = oracle.paper(
                queries[:, :stop], keys[:stop], noise, prompt_length=stop, blocks=[stop], **engine
            )
            return np.pad(answer.statistic, (0, 30 - stop))

        # the first block with its draw, and what the second adds with another
        expected = mass(18, draws[0][h]) + mass(30, draws[1][h]) - mass(18, draws[1][h])
        np.testing.assert_allclose(rows.columns["mass"][b, h], expected, **MASS)


def test_rows_inside_the_kept_set_are_evicted(oracle: ModuleType) -> None:
    tokens = stream("topics", shape=Shape(90))
    options = {"budget": 12, "n_sink": 2, "recent": 4, "tau": 2.0}
    positions = _run(tokens.keys, tokens.values, [30, 1, 59], options)[4]
    noise = gumbel(0, 0, 2, 0, 90)
    for b, h in np.ndindex(2, 2):
        kept = positions[b, h].tolist()
        assert kept == oracle.adapted(np.array(tokens.keys[b, h]), noise[h], **options).positions
        assert kept not in ([0, 1, *range(80, 90)], [*range(8), *range(86, 90)])


def test_a_stream_longer_than_several_tiles_keeps_the_oracles_rows(oracle: ModuleType) -> None:
    tokens = stream("topics", 1, Shape(length=1300, batch=1, heads=2))
    options = {"budget": 9, "n_sink": 1, "recent": 3, "tau_init": 1.0, "tau_end": 6.0, "anneal_steps": 900}
    held = _run(tokens.keys, tokens.values, [600, 700], options)
    noise = gumbel(0, 0, 2, 0, 1300)
    for h in range(2):
        kept = oracle.adapted(np.array(tokens.keys[0, h]), noise[h], **options)
        assert kept.narrowest > BAND
        assert held[4][0, h].tolist() == kept.positions
        np.testing.assert_allclose(np.array(held[2][0, h]), kept.statistic, **MASS)


def test_equal_masses_evict_the_oldest_where_tau_is_zero(oracle: ModuleType) -> None:
    options = {"budget": 8, "n_sink": 1, "recent": 3, "tau": 0.0}
    compared = 0
    with patch.object(oracle, "cut", wraps=oracle.cut) as cut:
        for seed in range(30):
            # logits 1,024 apart: weights are exactly 0 or 1 / m, and rows that nothing reads tie
            rng = np.random.default_rng(seed)
            keys = 64 * np.eye(16, dtype=np.float32)[rng.integers(6, size=40)]
            kept = oracle.adapted(keys, rng.gumbel(size=40), **options)
            if kept.narrowest > BAND:
                compared += 1
                for blocks in ([40], [1] * 40):
                    held = _run(mx.array(keys), mx.array(keys), blocks, options)
                    assert held[4].tolist() == kept.positions, seed
    ties = sum(_decided_by_age(oracle, *call.args) for call in cut.mock_calls)
    assert compared > 25
    assert ties > 10


def _decided_by_age(
    oracle: ModuleType, positions: list[int], scores: list[float], budget: int, n_sink: int, recent: int
) -> bool:
    kept, _ = oracle.cut(positions, scores, budget, n_sink, recent)
    n = len(positions)
    gone = {scores[j] for j in range(n) if j not in kept}
    return any(scores[j] in gone for j in kept if positions[j] >= n_sink and j < n - recent)
