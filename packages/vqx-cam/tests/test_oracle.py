"""CaM against an independent oracle in float64: the rows kept, their positions and their merged values."""

from types import ModuleType
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from vqx import EvictingCache, LayerInfo, Method, Options, Scorer
from vqx.noise import frozen
from vqx.testing import STREAMS, Shape, cache_of, feed, remaining, same_bits, stream
from vqx_cam.merging import TILE
from vqx_cam.method import DRAWS, CamConfig, build, wrap

BAND = 1e-5
"""Float32 cannot be asked to order numbers that lie closer; such streams are drawn again."""


LAST_QUERY = Scorer(score=lambda held: held.last.weights().mean(axis=2).mean(axis=2), window=1)


class Case(NamedTuple):
    options: dict[str, Any]
    base: str
    blocks: list[int]
    stream: str
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    options: dict[str, Any] = {"n_sink": draw(st.integers(0, 3)), "merge_budget": draw(st.integers(1, 12))}
    options["budget"] = options["n_sink"] + draw(st.integers(2, 12))
    blocks = [*draw(st.lists(st.integers(1, 12), max_size=4)), options["budget"] + 5, 1, 1, 3, 1]
    name = draw(st.sampled_from(sorted(STREAMS)))
    base = draw(st.sampled_from(["age", "last query"]))
    return Case(options, base, blocks, name, draw(st.integers(0, 2**16)))


PLAIN = {"n_sink": 1, "merge_budget": 4, "budget": 9}


@settings(max_examples=120, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
@example(Case(PLAIN, "age", [20, 1, 12, *[1] * 20], "gaussian", 0))
def test_alone_and_around_the_last_querys_attention_the_oracles_rows_and_values_stay(
    oracle: ModuleType, case: Case
) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), batch=1, width=4))
    queries = np.array(tokens.queries).reshape(2, 2, tokens.length, 4)
    keys, values = np.array(tokens.keys)[0], np.array(tokens.values)[0]
    draws = frozen(case.seed, 0, 2, 0, tokens.length, key=DRAWS)
    answers = [
        oracle.cam(
            queries[h],
            keys[h],
            values[h],
            draws[h],
            base=case.base,
            scale=0.5,
            blocks=case.blocks,
            **case.options,
        )
        for h in range(2)
    ]
    assume(all(kept.narrowest > BAND for kept in answers))
    config, layers = CamConfig(seed=case.seed, **case.options), [LayerInfo(0, "model")]
    tova = Method(LAST_QUERY, config.budget, config.n_sink, recent=1)
    (method,) = build(config, layers) if case.base == "age" else wrap(config, layers, [tova])
    rows = remaining(feed(EvictingCache(method, Options(queries="model")), tokens, case.blocks))
    for h, kept in enumerate(answers):
        assert rows.position[0, h].tolist() == kept.positions
        np.testing.assert_allclose(np.array(rows.values)[0, h], kept.values, rtol=1e-5, atol=1e-5)


def test_some_rows_go_in_and_some_do_not(oracle: ModuleType) -> None:
    """Of the rows of a prompt; of those that go while text is generated nearly all go in."""
    draws = frozen(0, 0, 2, 0, 64, key=DRAWS)[0]
    merges = drops = 0
    for name in STREAMS:
        tokens = stream(name, shape=Shape(64, batch=1))
        arrays = np.array(tokens.queries)[0, :2], np.array(tokens.keys)[0, 0], np.array(tokens.values)[0, 0]
        kept = oracle.cam(*arrays, draws, base="last query", scale=0.25, blocks=[64], **PLAIN)
        merges, drops = merges + kept.merges, drops + kept.drops
    assert merges > 20
    assert drops > 20


@pytest.mark.parametrize("engine", [Options(queries="model"), Options(queries="keys", interval=4)], ids=str)
def test_keys_and_positions_are_those_of_the_base(engine: Options) -> None:
    """Only values differ: nothing of what ranks rows reads them."""
    for name in STREAMS:
        one, base = (
            remaining(feed(cache_of("cam", engine, budget=12, merge_budget=m), stream(name), [30, *[1] * 34]))
            for m in (8, 0)
        )
        assert np.array_equal(one.position, base.position)
        assert same_bits(one.keys, base.keys)
        assert not same_bits(one.values, base.values)


def test_another_seed_or_layer_merges_other_rows() -> None:
    def values(seed: int, layer: int) -> mx.array:
        (method,) = build(CamConfig(budget=12, merge_budget=4, seed=seed), [LayerInfo(layer, "model")])
        cache = cache_of("cam", Options(queries="model"), budget=12)
        cache.plan = cache.plan._replace(method=method)
        return remaining(feed(cache, stream("gaussian"), [64])).values

    assert same_bits(values(0, 0), values(0, 0))
    assert not same_bits(values(0, 0), values(1, 0))
    assert not same_bits(values(0, 0), values(0, 1))


def test_more_rows_than_a_tile_holds_go_at_once(oracle: ModuleType) -> None:
    length = TILE + 40
    tokens = stream("tiny newest", 0, Shape(length, batch=1, heads=1, group=1, width=4))
    draws = frozen(0, 0, 1, 0, length, key=DRAWS)[0]
    keys, values = np.array(tokens.keys)[0, 0], np.array(tokens.values)[0, 0]
    scores = np.array(tokens.queries)[0, 0].astype(np.float64) @ keys.T.astype(np.float64) / 2
    weights = np.exp(np.where(np.tri(length, dtype=bool), scores, -np.inf))
    attention = (weights / weights.sum(axis=1, keepdims=True)).sum(axis=0)
    expected = values[-20:].astype(np.float64)
    taken = 0
    for row in range(length - 26, length - 20):
        chance = oracle.probability(attention[row], list(attention[row + 1 : row + 7]))
        assert abs(chance - draws[row]) > 1e-5
        taken += draws[row] < chance
        expected[: row - length + 27] += (draws[row] < chance) * values[row] / 6
    assert 0 < taken < 6
    cache = cache_of("cam", Options(queries="model"), budget=20, n_sink=0, merge_budget=6)
    rows = remaining(feed(cache, tokens, [length]))
    np.testing.assert_allclose(np.array(rows.values)[0, 0], expected, rtol=1e-3, atol=1e-3)


def test_merging_twice_is_refused() -> None:
    layers = [LayerInfo(0, "model")]
    once = build(CamConfig(budget=12), layers)
    with pytest.raises(ValueError, match="cam around a method that merges values itself"):
        wrap(CamConfig(budget=12), layers, once)
