"""Protected spans against loops in float64, around a base of the core's parts."""

from types import ModuleType

import numpy as np
import pytest
from vqx import EvictingCache, LayerInfo, Method, Options, accumulated
from vqx.testing import Shape, cache_of, feed, remaining, stream
from vqx_protect import ProtectConfig
from vqx_protect.method import wrap

SPANS = [((5, 9),), ((3, 6), (12, 30)), ((0, 4), (20, 24), (50, 90))]
BLOCKS = [[64], [7, 20, 1, 13, *[1] * 23]]


def around_mass(config: ProtectConfig, n_sink: int, recent: int) -> EvictingCache:
    base = Method(accumulated(), config.budget, n_sink, recent)
    return EvictingCache(wrap(config, [LayerInfo(0, "model")], [base])[0], Options(queries="model"))


@pytest.mark.parametrize("blocks", BLOCKS, ids=len)
@pytest.mark.parametrize("spans", SPANS, ids=str)
@pytest.mark.parametrize("keep", ["all", "share"])
def test_kept_rows_are_the_oracles(
    oracle: ModuleType, keep: str, spans: tuple[tuple[int, int], ...], blocks: list[int]
) -> None:
    if keep == "all" and spans[-1] == (50, 90):
        spans = spans[:-1]
    budget = 16 if keep == "share" else 34
    config = ProtectConfig(budget=budget, spans=spans, keep=keep)  # type: ignore[arg-type]
    compared = 0
    for seed in range(6):
        tokens = stream("topics", seed, Shape(batch=1, heads=2, width=4))
        queries = np.array(tokens.queries).reshape(2, 2, 64, 4).astype(np.float64)
        rows = remaining(feed(around_mass(config, 2, 5), tokens, blocks)).position[0]
        for head in range(2):
            right, gap = oracle.kept(
                queries[head],
                np.array(tokens.keys[0, head]).astype(np.float64),
                budget=budget,
                n_sink=2,
                recent=5,
                spans=list(spans),
                share=keep == "share",
                blocks=blocks,
            )
            if gap > 1e-5:
                compared += 1
                assert rows[head].tolist() == right
    assert compared > 3


def test_a_base_evicts_rows_that_protection_or_a_share_keeps() -> None:
    tokens, spans = stream("topics"), ((26, 34),)
    inside = {}
    for name, config in {
        "base": ProtectConfig(budget=16),
        "share": ProtectConfig(budget=16, spans=spans, keep="share"),
        "all": ProtectConfig(budget=16, spans=spans),
    }.items():
        position = remaining(feed(around_mass(config, 1, 5), tokens, [40, *[1] * 24])).position
        inside[name] = ((position >= 26) & (position < 34)).sum(axis=2)
    assert (inside["all"] == 8).all()
    assert (inside["share"] >= 10 * 8 // 64).all()
    assert (inside["base"] < inside["share"]).any()
    assert (inside["share"] < 8).all()


@pytest.mark.parametrize("cadence", ["token", "block"])
def test_alone_it_keeps_sinks_spans_and_the_newest(cadence: str) -> None:
    engine = Options(queries="model", cadence=cadence)  # type: ignore[arg-type]
    cache = feed(
        cache_of("protect", engine, budget=12, n_sink=2, spans=((1, 3), (30, 33))), stream("gaussian"), [64]
    )
    assert (remaining(cache).position == np.array([0, 1, 2, 30, 31, 32, *range(58, 64)])).all()
