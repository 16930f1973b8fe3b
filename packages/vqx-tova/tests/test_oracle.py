"""TOVA against an independent oracle in float64: the rows kept and their positions."""

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
from vqx_tova import init_tova_state, tova_update, tova_update_batched

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
def cases(draw: st.DrawFn, heads: tuple[str, ...] = ("each", "layer")) -> Case:
    options: dict[str, Any] = {"n_sink": draw(st.integers(0, 4)), "keep_newest": draw(st.booleans())}
    options["budget"] = sum(options.values()) + draw(st.integers(1, 8))
    options["heads"] = draw(st.sampled_from(heads))
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
        *held, indices = tova_update_batched(
            *held, keys[..., new, :], values[..., new, :], **options, return_indices=True
        )
        arriving = mx.broadcast_to(mx.arange(seen, seen + length), (*keys.shape[:-2], length))
        positions = mx.take_along_axis(mx.concatenate([positions, arriving], axis=-1), indices, axis=-1)
        seen += length
    return *held, positions


@thorough
@given(cases())
@example(Case({"budget": 1, "n_sink": 0, "keep_newest": False, "heads": "each"}, [3, 1, 4], "gaussian", 0, 4))
@example(Case({"budget": 1, "n_sink": 0, "keep_newest": False, "heads": "layer"}, [9], "tiny newest", 0, 4))
def test_the_adapted_form_keeps_the_oracles_rows(oracle: ModuleType, case: Case) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), heads=3, group=1, width=case.width))
    answers = [oracle.adapted(np.array(row), **case.options) for row in tokens.keys]
    assume(all(kept.narrowest > BAND for row in answers for kept in row))
    keys, values, positions = _run(tokens.keys, tokens.values, case.blocks, case.options)
    assert keys is not None
    assert values is not None
    for b, row in enumerate(answers):
        for h, kept in enumerate(row):
            assert positions[b, h].tolist() == kept.positions
            assert same_bits(keys[b, h], tokens.keys[b, h][positions[b, h]])
            assert same_bits(values[b, h], tokens.values[b, h][positions[b, h]])
    rows = remaining(feed(cache_of("tova", ADAPTED, **case.options), tokens, case.blocks))
    assert np.array_equal(rows.position, np.array(positions))


@settings(thorough, max_examples=60)
@given(cases(heads=("each",)))
def test_one_head_at_a_time_is_bit_for_bit_all_heads_at_once(case: Case) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), heads=3, group=1, width=case.width))
    together = _run(tokens.keys, tokens.values, case.blocks, case.options)[:2]
    options = {name: value for name, value in case.options.items() if name != "heads"}
    for b, h in np.ndindex(2, 3):
        state = init_tova_state(head_dim=case.width, **options)
        for length in case.blocks:
            new = slice(state.pos, state.pos + length)
            state = tova_update(state, tokens.keys[b, h, new], tokens.values[b, h, new])
        assert state.pos == tokens.length
        for one, other in zip((state.keys, state.values), together, strict=True):
            assert one is not None
            assert other is not None
            assert same_bits(one, other[b, h])


@settings(thorough, max_examples=60)
@given(cases(heads=("layer",)))
def test_one_sequence_at_a_time_is_bit_for_bit_the_whole_batch(case: Case) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), heads=3, group=1, width=case.width))
    together = _run(tokens.keys, tokens.values, case.blocks, case.options)
    for b in range(2):
        alone = _run(tokens.keys[b], tokens.values[b], case.blocks, case.options)
        for one, other in zip(alone, together, strict=True):
            assert one is not None
            assert other is not None
            assert same_bits(one, other[b])


@thorough
@given(cases(), st.integers(1, 3))
def test_true_queries_in_blocks_keep_the_oracles_rows(oracle: ModuleType, case: Case, group: int) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), batch=1, group=group, width=case.width))
    queries = np.array(tokens.queries).reshape(2, group, tokens.length, case.width)
    answers = oracle.paper(
        queries, np.array(tokens.keys)[0], scale=case.width**-0.5, blocks=case.blocks, **case.options
    )
    assume(all(kept.narrowest > BAND for kept in answers))
    rows = remaining(feed(cache_of("tova", Options(queries="model"), **case.options), tokens, case.blocks))
    for h, kept in enumerate(answers):
        assert rows.position[0, h].tolist() == kept.positions


def test_rows_inside_the_kept_set_are_evicted(oracle: ModuleType) -> None:
    tokens = stream("topics", shape=Shape(90))
    options = {"budget": 12, "n_sink": 2, "heads": "each"}
    positions = _run(tokens.keys, tokens.values, [30, 1, 59], options)[2]
    for b in range(2):
        for h, kept in enumerate(oracle.adapted(np.array(tokens.keys[b]), **options)):
            assert positions[b, h].tolist() == kept.positions
            assert kept.positions not in ([0, 1, *range(80, 90)], [*range(11), 89])


@pytest.mark.parametrize("heads", ["each", "layer"])
@pytest.mark.parametrize(("length", "seed"), [(257, 6), (263, 0), (515, 29)])
def test_a_block_that_ends_just_behind_a_tile_keeps_the_oracles_rows(
    oracle: ModuleType, length: int, seed: int, heads: str
) -> None:
    tokens = stream("gaussian", seed, Shape(length, batch=1, heads=2, width=4))
    options = {"budget": 9, "n_sink": 1, "heads": heads}
    positions = _run(tokens.keys, tokens.values, [length], options)[2]
    for h, kept in enumerate(oracle.adapted(np.array(tokens.keys[0]), **options)):
        assert kept.narrowest > BAND
        assert positions[0, h].tolist() == kept.positions


@pytest.mark.parametrize("keep_newest", [True, False])
def test_a_newest_key_of_tiny_norm_goes_unless_it_is_shielded(oracle: ModuleType, keep_newest: bool) -> None:
    # gaussian keys read themselves most, so that the newest row never goes: they cannot tell
    options = {"budget": 12, "n_sink": 2, "heads": "each", "keep_newest": keep_newest}
    newest = {}
    for name in ("gaussian", "tiny newest"):
        tokens = stream(name, shape=Shape(65))
        positions = _run(tokens.keys, tokens.values, [30, 1, 34], options)[2]
        for b in range(2):
            for h, kept in enumerate(oracle.adapted(np.array(tokens.keys[b]), **options)):
                assert positions[b, h].tolist() == kept.positions
        newest[name] = bool((positions[..., -1] == 64).all())
    assert newest == {"gaussian": True, "tiny newest": keep_newest}


@pytest.mark.parametrize("heads", ["each", "layer"])
@pytest.mark.parametrize("name", ["small integers", "duplicates"])
def test_equal_attention_evicts_the_oldest(oracle: ModuleType, name: str, heads: str) -> None:
    compared = 0
    options: dict[str, Any] = {"budget": 8, "n_sink": 1, "heads": heads, "keep_newest": False}
    with patch.object(oracle, "cut", wraps=oracle.cut) as cut:
        for seed in range(10):
            tokens = stream(name, seed, Shape(40, batch=1, heads=2, group=1, width=4))
            keys, queries = np.array(tokens.keys[0]), np.array(tokens.queries[0])
            by_key = oracle.adapted(keys, **options)
            if all(kept.narrowest > BAND for kept in by_key):
                compared += 1
                for blocks in ([40], [1] * 40):
                    positions = _run(tokens.keys, tokens.values, blocks, options)[2]
                    assert positions[0].tolist() == [kept.positions for kept in by_key], seed
            blocks = [13, 9, *[1] * 18]
            by_query = oracle.paper(queries[:, None], keys, scale=0.5, blocks=blocks, **options)
            if all(kept.narrowest > BAND for kept in by_query):
                compared += 1
                rows = remaining(feed(cache_of("tova", Options(queries="model"), **options), tokens, blocks))
                assert rows.position[0].tolist() == [kept.positions for kept in by_query], seed
    ties = sum(_decided_by_age(oracle, *call.args) for call in cut.mock_calls)
    assert compared > 10
    assert ties > 100


def _decided_by_age(
    oracle: ModuleType, positions: list[int], scores: list[float], budget: int, n_sink: int, recent: int
) -> bool:
    kept, _ = oracle.cut(positions, scores, budget, n_sink, recent)
    n = len(positions)
    gone = {scores[j] for j in range(n) if j not in kept}
    return any(scores[j] in gone for j in kept if positions[j] >= n_sink and j < n - recent)
