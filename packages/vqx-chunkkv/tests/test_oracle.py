"""ChunkKV against an independent oracle in float64: the rows kept and their positions."""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from vqx import EvictingCache, LayerInfo, Method, Options, accumulated
from vqx.testing import STREAMS, Shape, cache_of, feed, remaining, stream
from vqx_chunkkv import ChunkKVConfig
from vqx_chunkkv.method import build, wrap

BAND = 1e-5
"""Float32 cannot be asked to order scores that lie closer; such streams are drawn again."""


class Case(NamedTuple):
    options: dict[str, Any]
    base: str
    blocks: list[int]
    stream: str
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    options: dict[str, Any] = {"n_sink": draw(st.integers(0, 3)), "window": draw(st.integers(1, 5))}
    options["budget"] = sum(options.values()) + draw(st.integers(3, 12))
    options["chunk"] = draw(st.integers(1, 8))
    options["heads"] = draw(st.sampled_from(["each", "layer"]))
    blocks = [*draw(st.lists(st.integers(1, 12), max_size=4)), options["budget"] + 9, 1, 1, 3]
    name = draw(st.sampled_from(sorted(STREAMS)))
    return Case(options, draw(st.sampled_from(["window", "mass"])), blocks, name, draw(st.integers(0, 2**32)))


@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_alone_and_around_accumulated_mass_the_oracles_rows_stay(oracle: ModuleType, case: Case) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), batch=1, group=2, width=4))
    queries, keys = np.array(tokens.queries).reshape(2, 2, tokens.length, 4), np.array(tokens.keys)[0]
    answers = oracle.chunkkv(queries, keys, base=case.base, scale=0.5, blocks=case.blocks, **case.options)
    assume(all(kept.narrowest > BAND for kept in answers))
    config, layers = ChunkKVConfig(**case.options), [LayerInfo(0, "model")]
    mass = Method(accumulated(), config.budget, config.n_sink, recent=config.window)
    (method,) = build(config, layers) if case.base == "window" else wrap(config, layers, [mass])
    cache = feed(EvictingCache(method, Options(queries="model")), tokens, case.blocks)
    assert remaining(cache).position[0].tolist() == [kept.positions for kept in answers]


def test_chunks_stay_or_go_whole_but_for_one_that_keeps_its_newest_rows() -> None:
    cache = cache_of("chunkkv", Options(queries="model"), budget=22, chunk=5, window=4, n_sink=0)
    for position in remaining(feed(cache, stream("gaussian"), [64])).position.reshape(-1, 22):
        free = position[position < 60]
        whole = [number for number in set(free // 5) if (free // 5 == number).sum() == 5]
        (part,) = set(free // 5) - set(whole)
        assert len(whole) == 3
        assert free[free // 5 == part].tolist() == [5 * part + 2, 5 * part + 3, 5 * part + 4]
