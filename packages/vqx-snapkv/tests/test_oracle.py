"""SnapKV against an independent oracle in float64: the rows kept and their positions."""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from vqx import Options
from vqx.testing import STREAMS, Shape, cache_of, feed, remaining, stream

BAND = 1e-5
"""Float32 cannot be asked to order scores that lie closer; such streams are drawn again."""


class Case(NamedTuple):
    options: dict[str, Any]
    blocks: list[int]
    stream: str
    seed: int
    group: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    options: dict[str, Any] = {"n_sink": draw(st.integers(0, 3)), "window": draw(st.integers(1, 5))}
    options["budget"] = sum(options.values()) + draw(st.integers(1, 8))
    options["kernel"] = draw(st.sampled_from([1, 3, 7]))
    options["pool"] = draw(st.sampled_from(["mean", "max", None]))
    options["group"] = draw(st.sampled_from(["mean", "max"]))
    options["heads"] = draw(st.sampled_from(["each", "layer"]))
    blocks = [*draw(st.lists(st.integers(1, 12), max_size=4)), options["budget"] + 9, 1, 1, 3]
    return Case(
        options,
        blocks,
        draw(st.sampled_from(sorted(STREAMS))),
        draw(st.integers(0, 2**32)),
        draw(st.integers(1, 3)),
    )


PLAIN = {
    "n_sink": 0,
    "window": 4,
    "budget": 12,
    "kernel": 5,
    "pool": "mean",
    "group": "mean",
    "heads": "each",
}


@settings(max_examples=120, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
@example(Case(PLAIN, [48], "topics", 0, 2))
@example(Case({**PLAIN, "pool": "max", "heads": "layer"}, [20, 20, 1, 1], "gaussian", 1, 2))
def test_true_queries_in_blocks_keep_the_oracles_rows(oracle: ModuleType, case: Case) -> None:
    tokens = stream(case.stream, case.seed, Shape(sum(case.blocks), batch=1, group=case.group, width=4))
    queries = np.array(tokens.queries).reshape(2, case.group, tokens.length, 4)
    answers = oracle.snapkv(queries, np.array(tokens.keys)[0], scale=0.5, blocks=case.blocks, **case.options)
    assume(all(kept.narrowest > BAND for kept in answers))
    cache = cache_of("snapkv", Options(queries="model"), **case.options)
    rows = remaining(feed(cache, tokens, case.blocks))
    assert rows.position[0].tolist() == [kept.positions for kept in answers]


@pytest.mark.parametrize("cadence", ["block", "token"])
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_token_by_token_the_newest_window_ranks_anew(oracle: ModuleType, cadence: Any, seed: int) -> None:
    tokens = stream("topics", seed, Shape(40, batch=1, group=2))
    queries = np.array(tokens.queries).reshape(2, 2, 40, 16)
    answers = oracle.snapkv(queries, np.array(tokens.keys)[0], scale=0.25, blocks=[1] * 40, **PLAIN)
    assert all(kept.narrowest > BAND for kept in answers)
    blocks = [40] if cadence == "token" else [1] * 40
    cache = feed(cache_of("snapkv", Options(queries="model", cadence=cadence), **PLAIN), tokens, blocks)
    assert remaining(cache).position[0].tolist() == [kept.positions for kept in answers]


def test_a_whole_prompt_is_cut_once_by_its_last_queries(oracle: ModuleType) -> None:
    """However the prompt was cut into chunks; its last token comes alone, as mlx-lm feeds it."""
    tokens = stream("gaussian", shape=Shape(64, batch=1))
    queries = np.array(tokens.queries).reshape(2, 2, 64, 16)
    answers = oracle.snapkv(queries, np.array(tokens.keys)[0], scale=0.25, blocks=[64], **PLAIN)
    assert all(kept.narrowest > BAND for kept in answers)
    for blocks in ([63, 1], [20, 30, 13, 1]):
        cache = feed(cache_of("snapkv", Options(queries="model", prompt="whole"), **PLAIN), tokens, blocks)
        assert cache.size() == 64
        assert remaining(cache).position[0].tolist() == [kept.positions for kept in answers]


@pytest.mark.parametrize(
    ("name", "value"), [("pool", None), ("pool", "max"), ("kernel", 3), ("group", "max"), ("heads", "layer")]
)
def test_each_option_keeps_other_rows(name: str, value: Any) -> None:
    tokens = stream("gaussian")
    one, other = (
        remaining(feed(cache_of("snapkv", Options(queries="model"), **options), tokens, [64])).position
        for options in (PLAIN, {**PLAIN, name: value})
    )
    assert not np.array_equal(one, other)
