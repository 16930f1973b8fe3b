"""MorphKV against an independent oracle in float64: the rows kept and their positions."""

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
from vqx_morphkv import init_morphkv_state, morphkv_update, morphkv_update_batched

BAND = 1e-5
"""Float32 cannot be asked to order scores that lie closer; such streams are drawn again."""

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
def cases(draw: st.DrawFn, sinks: int, **choices: list[str]) -> Case:
    options: dict[str, Any] = {"n_sink": draw(st.integers(0, sinks)), "window": draw(st.integers(1, 5))}
    options["budget"] = sum(options.values()) + draw(st.integers(1, 6))
    options |= {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    blocks = draw(st.lists(st.integers(1, 12), max_size=5))
    blocks += draw(st.permutations([options["budget"] + 1, 1, 1]))
    width = draw(st.sampled_from([1, 4, 16]))
    return Case(options, blocks, draw(st.sampled_from(sorted(STREAMS))), draw(st.integers(0, 2**32)), width)


def _run(
    keys: mx.array, values: mx.array, blocks: list[int], options: dict[str, Any]
) -> tuple[mx.array | None, mx.array | None, mx.array]:
    """Keys, values and positions kept: indices into old and new rows say which stayed."""
    held: tuple[Any, Any] = (None, None)
    positions, seen = mx.zeros((*keys.shape[:-2], 0), mx.int32), 0
    for length in blocks:
        new = slice(seen, seen + length)
        *held, indices = morphkv_update_batched(
            *held, keys[..., new, :], values[..., new, :], **options, return_indices=True
        )
        arriving = mx.broadcast_to(mx.arange(seen, seen + length), (*keys.shape[:-2], length))
        positions = mx.take_along_axis(mx.concatenate([positions, arriving], axis=-1), indices, axis=-1)
        seen += length
    return *held, positions


@thorough
@given(cases(sinks=4))
@example(Case({"budget": 2, "n_sink": 0, "window": 1}, [3, 1, 4], "gaussian", 0, 4))
def test_the_adapted_form_keeps_the_oracles_rows(oracle: ModuleType, case: Case) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), heads=3, group=1, width=case.width))
    answers = [[oracle.adapted(np.array(head), **case.options) for head in row] for row in tokens.keys]
    assume(all(kept.narrowest > BAND for row in answers for kept in row))
    keys, values, positions = _run(tokens.keys, tokens.values, case.blocks, case.options)
    assert keys is not None
    assert values is not None
    for b, row in enumerate(answers):
        for h, kept in enumerate(row):
            assert positions[b, h].tolist() == kept.positions
            assert same_bits(keys[b, h], tokens.keys[b, h][positions[b, h]])
            assert same_bits(values[b, h], tokens.values[b, h][positions[b, h]])
    rows = remaining(feed(cache_of("morphkv", ADAPTED, **case.options), tokens, case.blocks))
    assert np.array_equal(rows.position, np.array(positions))


@settings(thorough, max_examples=60)
@given(cases(sinks=4))
def test_one_head_at_a_time_is_bit_for_bit_all_heads_at_once(case: Case) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), heads=3, group=1, width=case.width))
    together = _run(tokens.keys, tokens.values, case.blocks, case.options)[:2]
    for b, h in np.ndindex(2, 3):
        state = init_morphkv_state(head_dim=case.width, **case.options)
        for length in case.blocks:
            new = slice(state.pos, state.pos + length)
            state = morphkv_update(state, tokens.keys[b, h, new], tokens.values[b, h, new])
        assert state.pos == tokens.length
        for one, other in zip((state.keys, state.values), together, strict=True):
            assert one is not None
            assert other is not None
            assert same_bits(one, other[b, h])


@thorough
@given(cases(sinks=0, fuse=["sum", "max"], group=["max", "logits"]), st.integers(1, 3))
def test_true_queries_in_blocks_keep_the_oracles_rows(oracle: ModuleType, case: Case, group: int) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), batch=1, group=group, width=case.width))
    queries = np.array(tokens.queries).reshape(2, group, tokens.length, case.width)
    options = {name: value for name, value in case.options.items() if name != "n_sink"}
    answers = [
        oracle.paper(q, k, scale=case.width**-0.5, blocks=case.blocks, **options)
        for q, k in zip(queries, np.array(tokens.keys)[0], strict=True)
    ]
    assume(all(kept.narrowest > BAND for kept in answers))
    if group == 1 and case.options["group"] == "max":
        options["group"] = "mean"  # of one head: the same
    cache = cache_of("morphkv", Options(queries="model"), over="old", n_sink=0, **options)
    rows = remaining(feed(cache, tokens, case.blocks))
    for h, kept in enumerate(answers):
        assert rows.position[0, h].tolist() == kept.positions


def test_the_mean_over_the_group_is_neither_its_max_nor_its_logits() -> None:
    tokens = stream("topics", 3, Shape(80, group=4))

    def kept(group: str, length: int = 80) -> np.ndarray:
        cache = cache_of("morphkv", Options(queries="model"), budget=16, group=group)
        return remaining(feed(cache, tokens, [40, *[1] * (length - 40)])).position

    # the last cut by plain sums: weights of the last 8 queries over the rows that each of them saw
    before, after = kept("mean", 79), kept("mean")
    for b, h in np.ndindex(2, 2):
        rows = np.array([*before[b, h], 79])
        logits = np.array(tokens.queries[b, 4 * h : 4 * h + 4, 72:]) @ np.array(tokens.keys[b, h])[rows].T / 4
        logits = np.where(rows > np.arange(72, 80)[:, None], -np.inf, logits)
        weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        score = weights.mean(axis=(0, 1))
        score[rows < 4] = score[rows > 71] = np.inf
        assert sorted(set(rows) - {rows[score.argmin()]}) == after[b, h].tolist()
    assert not np.array_equal(after, kept("max"))
    assert not np.array_equal(after, kept("logits"))


def test_rows_inside_the_kept_set_are_evicted(oracle: ModuleType) -> None:
    tokens = stream("topics", shape=Shape(90))
    options = {"budget": 12, "n_sink": 2, "window": 4}
    positions = _run(tokens.keys, tokens.values, [30, 1, 59], options)[2]
    for b, h in np.ndindex(2, 2):
        kept = positions[b, h].tolist()
        assert kept == oracle.adapted(np.array(tokens.keys[b, h]), **options).positions
        assert kept not in ([0, 1, *range(80, 90)], [*range(8), *range(86, 90)])


@pytest.mark.parametrize(("length", "seed"), [(257, 6), (263, 0), (515, 2)])
def test_a_block_that_ends_just_behind_a_tile_keeps_the_oracles_rows(
    oracle: ModuleType, length: int, seed: int
) -> None:
    tokens = stream("gaussian", seed, Shape(length, batch=1, heads=2, width=4))
    options = {"budget": 9, "n_sink": 1, "window": 3}
    positions = _run(tokens.keys, tokens.values, [length], options)[2]
    for h in range(2):
        kept = oracle.adapted(np.array(tokens.keys[0, h]), **options)
        assert kept.narrowest > BAND
        assert positions[0, h].tolist() == kept.positions


@pytest.mark.parametrize("name", ["small integers", "duplicates"])
def test_equal_relevance_evicts_the_oldest(oracle: ModuleType, name: str) -> None:
    compared = 0
    with patch.object(oracle, "cut", wraps=oracle.cut) as cut:
        for seed in range(15):
            tokens = stream(name, seed, Shape(40, batch=1, heads=1, group=1, width=4))
            keys, queries = np.array(tokens.keys[0, 0]), np.array(tokens.queries[0])
            by_key = oracle.adapted(keys, budget=8, n_sink=1, window=2)
            if by_key.narrowest > BAND:
                compared += 1
                for blocks in ([40], [1] * 40):
                    options = {"budget": 8, "n_sink": 1, "window": 2}
                    positions = _run(tokens.keys, tokens.values, blocks, options)[2]
                    assert positions[0, 0].tolist() == by_key.positions, seed
            paper = {"budget": 8, "window": 2, "fuse": "max", "group": "max"}
            blocks = [13, 9, *[1] * 18]
            by_query = oracle.paper(queries, keys, scale=0.5, blocks=blocks, **paper)
            if by_query.narrowest > BAND:
                compared += 1
                cache = cache_of("morphkv", Options(queries="model"), over="old", n_sink=0, **paper)
                rows = remaining(feed(cache, tokens, blocks))
                assert rows.position[0, 0].tolist() == by_query.positions, seed
    ties = sum(_decided_by_age(oracle, *call.args) for call in cut.mock_calls)
    assert compared > 20
    assert ties > 100


def _decided_by_age(
    oracle: ModuleType, positions: list[int], scores: list[float], budget: int, n_sink: int, recent: int
) -> bool:
    kept, _ = oracle.cut(positions, scores, budget, n_sink, recent)
    n = len(positions)
    gone = {scores[j] for j in range(n) if j not in kept}
    return any(scores[j] in gone for j in kept if positions[j] >= n_sink and j < n - recent)
