"""H2O against an independent oracle in float64: the rows kept, their positions and their mass."""

from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from vqx import Options
from vqx.testing import STREAMS, Shape, Stream, cache_of, feed, remaining, same_bits, stream
from vqx_h2o import h2o_update, h2o_update_batched, init_h2o_state

pytestmark = pytest.mark.filterwarnings("ignore:h2o with recent=0")

BAND = 2e-5
"""Float32 cannot be asked to order scores that lie closer; such streams are drawn again."""

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
    options = {name: draw(st.integers(0, 4)) for name in ("n_sink", "recent", "grace")}
    safe = options["n_sink"] + max(options["recent"], options["grace"])
    options["budget"] = safe + draw(st.integers(1, 6))
    options["decay"] = draw(st.sampled_from([1.0, 0.98, 0.5]))
    return _case(draw, options)


@st.composite
def paper_cases(draw: st.DrawFn) -> Case:
    options = {name: draw(st.integers(0, 4)) for name in ("n_sink", "recent")}
    options["budget"] = sum(options.values()) + draw(st.integers(1, 6))
    options["decay"] = draw(st.sampled_from([1.0, 0.9]))
    options["normalise"] = draw(st.sampled_from([None, "seen"]))
    return _case(draw, options)


def _case(draw: st.DrawFn, options: dict[str, Any]) -> Case:
    blocks = draw(st.lists(st.integers(1, 12), max_size=5))
    blocks += draw(st.permutations([options["budget"] + 1, 1, 1]))
    width = draw(st.sampled_from([1, 4, 16]))
    return Case(options, blocks, draw(st.sampled_from(sorted(STREAMS))), draw(st.integers(0, 2**32)), width)


def _update(
    held: tuple[Any, ...], keys: mx.array, values: mx.array, options: dict[str, Any], **more: Any
) -> tuple[Any, ...]:
    *rows, seen = held
    return h2o_update_batched(*rows, keys, values, next_pos=seen, **options, **more)


def _run(keys: mx.array, values: mx.array, blocks: list[int], options: dict[str, Any]) -> tuple[Any, ...]:
    held: tuple[Any, ...] = (None, None, None, None, 0)
    for length in blocks:
        new = slice(held[-1], held[-1] + length)
        held = _update(held, keys[..., new, :], values[..., new, :], options)
    return held


@thorough
@given(adapted_cases())
@example(Case({"budget": 1, "n_sink": 0, "recent": 0, "grace": 0, "decay": 1.0}, [3, 1, 4], "gaussian", 0, 4))
def test_the_adapted_form_keeps_the_oracles_rows_and_mass(oracle: ModuleType, case: Case) -> None:
    shape = Shape(length=sum(case.blocks), heads=3, group=1, width=case.width)
    tokens = stream(case.stream, case.seed, shape)
    answers = [[oracle.adapted(np.array(head), **case.options) for head in row] for row in tokens.keys]
    assume(all(kept.narrowest > BAND for row in answers for kept in row))
    keys, values, scores, positions, seen = _run(tokens.keys, tokens.values, case.blocks, case.options)
    assert seen == tokens.length
    assert scores.dtype == mx.float32
    for b, row in enumerate(answers):
        for h, kept in enumerate(row):
            assert positions[b, h].tolist() == kept.positions
            np.testing.assert_allclose(np.array(scores[b, h]), kept.statistic, **MASS)
            assert same_bits(keys[b, h], tokens.keys[b, h][positions[b, h]])
            assert same_bits(values[b, h], tokens.values[b, h][positions[b, h]])
    rows = remaining(feed(cache_of("h2o", ADAPTED, normalise=None, **case.options), tokens, case.blocks))
    assert np.array_equal(rows.position, np.array(positions))
    np.testing.assert_allclose(rows.columns["mass"], np.array(scores), **MASS)


@settings(thorough, max_examples=40)
@given(adapted_cases())
def test_one_head_at_a_time_is_bit_for_bit_all_heads_at_once(case: Case) -> None:
    shape = Shape(length=sum(case.blocks), heads=3, group=1, width=case.width)
    tokens = stream(case.stream, case.seed, shape)
    together = _run(tokens.keys, tokens.values, case.blocks, case.options)
    for b, h in np.ndindex(2, 3):
        state = init_h2o_state(head_dim=case.width, **case.options)
        for length in case.blocks:
            new = slice(state.next_pos, state.next_pos + length)
            state = h2o_update(state, tokens.keys[b, h, new], tokens.values[b, h, new])
        assert state.next_pos == tokens.length
        alone = state.keys, state.values, state.scores, state.positions
        for one, other in zip(alone, together, strict=False):
            assert one is not None
            assert same_bits(one, other[b, h])


@thorough
@given(paper_cases(), st.integers(1, 3))
def test_true_queries_in_blocks_keep_the_oracles_rows_and_mass(
    oracle: ModuleType, case: Case, group: int
) -> None:
    shape = Shape(length=sum(case.blocks), batch=1, group=group, width=case.width)
    tokens = stream(case.stream, case.seed, shape)
    queries = np.array(tokens.queries).reshape(1, 2, group, tokens.length, case.width)
    answers = [
        oracle.paper(q, k, scale=case.width**-0.5, blocks=case.blocks, **case.options)
        for q, k in zip(queries[0], np.array(tokens.keys)[0], strict=True)
    ]
    assume(all(kept.narrowest > BAND for kept in answers))
    rows = remaining(feed(cache_of("h2o", Options(queries="model"), **case.options), tokens, case.blocks))
    for h, kept in enumerate(answers):
        assert rows.position[0, h].tolist() == kept.positions
        np.testing.assert_allclose(rows.columns["mass"][0, h], kept.statistic, **MASS)


@settings(thorough, max_examples=100)
@given(paper_cases(), st.integers(2, 5), st.integers(1, 4))
def test_an_interval_is_a_block_of_generated_tokens(
    oracle: ModuleType, case: Case, interval: int, cuts: int
) -> None:
    prompt = case.options["budget"] + 5
    shape = Shape(length=prompt + interval * cuts, batch=1, width=case.width)
    tokens = stream(case.stream, case.seed, shape)
    queries = np.array(tokens.queries).reshape(2, 2, tokens.length, case.width)
    answers = [
        oracle.paper(q, k, scale=case.width**-0.5, blocks=[prompt] + [interval] * cuts, **case.options)
        for q, k in zip(queries, np.array(tokens.keys)[0], strict=True)
    ]
    assume(all(kept.narrowest > BAND for kept in answers))
    cache = cache_of("h2o", Options(queries="model", interval=interval), **case.options)
    rows = remaining(feed(cache, tokens, [prompt] + [1] * interval * cuts))
    for h, kept in enumerate(answers):
        assert rows.position[0, h].tolist() == kept.positions
        np.testing.assert_allclose(rows.columns["mass"][0, h], kept.statistic, **MASS)


def test_rows_inside_the_kept_set_are_evicted(oracle: ModuleType) -> None:
    tokens = stream("topics", shape=Shape(length=90))
    options = {"budget": 12, "n_sink": 2, "recent": 4, "decay": 0.9}
    positions = _run(tokens.keys, tokens.values, [30, 1, 59], options)[3]
    for b, h in np.ndindex(2, 2):
        kept = positions[b, h].tolist()
        assert kept == oracle.adapted(np.array(tokens.keys[b, h]), **options).positions
        assert kept not in ([0, 1, *range(80, 90)], [*range(8), *range(86, 90)])


def test_a_stream_longer_than_several_tiles_keeps_the_oracles_rows(oracle: ModuleType) -> None:
    tokens = stream("topics", 1, Shape(length=700, batch=1, heads=2))
    options = {"budget": 9, "n_sink": 1, "recent": 3, "decay": 0.98}
    held = _run(tokens.keys, tokens.values, [600, 100], options)
    for h in range(2):
        kept = oracle.adapted(np.array(tokens.keys[0, h]), **options)
        assert kept.narrowest > BAND
        assert held[3][0, h].tolist() == kept.positions
        np.testing.assert_allclose(np.array(held[2][0, h]), kept.statistic, **MASS)


def test_equal_masses_evict_the_oldest(oracle: ModuleType) -> None:
    options = {"budget": 8, "n_sink": 1, "recent": 3}
    compared = 0
    with patch.object(oracle, "cut", wraps=oracle.cut) as cut:
        for seed in range(40):
            # logits 1,024 apart: weights are exactly 0 or 1 / m, and rows that nothing reads tie
            rng = np.random.default_rng(seed)
            keys = 64 * np.eye(16, dtype=np.float32)[rng.integers(6, size=40)]
            queries = np.broadcast_to(keys[0], keys.shape)
            by_key = oracle.adapted(keys, **options)
            if by_key.narrowest > BAND:
                compared += 1
                for blocks in ([40], [1] * 40):
                    held = _run(mx.array(keys), mx.array(keys), blocks, options)
                    assert held[3].tolist() == by_key.positions, seed
            blocks = [13, 9, 9, 1, 8]
            by_query = oracle.paper(queries[None], keys, scale=0.25, blocks=blocks, **options)
            if by_query.narrowest > BAND:
                compared += 1
                tokens = Stream(*(mx.array(array)[None, None] for array in (queries, keys, keys)))
                cache = cache_of("h2o", Options(queries="model"), normalise=None, **options)
                rows = remaining(feed(cache, tokens, blocks))
                assert rows.position[0, 0].tolist() == by_query.positions, seed
    ties = sum(_decided_by_age(oracle, *call.args) for call in cut.mock_calls)
    assert compared > 60
    assert ties > 100


def _decided_by_age(
    oracle: ModuleType, positions: list[int], scores: list[float], budget: int, n_sink: int, recent: int
) -> bool:
    kept, _ = oracle.cut(positions, scores, budget, n_sink, recent)
    n = len(positions)
    gone = {scores[j] for j in range(n) if j not in kept}
    return any(scores[j] in gone for j in kept if positions[j] >= n_sink and j < n - recent)
