"""One layer between forwards: what is due, what scores are shown, what stays as it was."""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import Arrivals, EvictingCache, Held, Method, Options, Scorer, accumulated
from vqx.state.arrival import admit
from vqx.state.layer import Layer, Plan
from vqx.state.queries import stand_ins
from vqx.state.rows import Rows

ALIKE = Scorer(score=lambda held: 0.0)


def holding(rows: int, last: int) -> Layer:
    empty = mx.zeros((1, 1, rows, 4))
    position = mx.arange(rows, dtype=mx.int32).reshape(1, 1, rows)
    return Layer(Rows(empty, empty, position, {}), tokens_seen=rows, last=last)


@pytest.mark.parametrize(
    ("options", "rows", "last", "remain"),
    [
        ({}, 10, 5, 10),  # not above the budget
        ({}, 11, 1, 10),
        ({}, 15, 5, 10),
        ({"interval": 4}, 13, 1, 13),
        ({"interval": 4}, 14, 1, 10),
        ({"interval": 4}, 11, 5, 10),  # after a chunk of a prompt the budget holds whatever the interval
        ({"prompt": "whole"}, 30, 5, 30),
        ({"prompt": "whole"}, 31, 1, 10),
        ({"prompt": "whole", "interval": 4}, 13, 1, 13),
        ({"cadence": "token"}, 15, 5, 10),
        ({"cadence": "token"}, 8, 5, 8),
        ({"cadence": "token"}, 11, 1, 10),
    ],
)
def test_what_remains_depends_on_counts_alone(
    options: Mapping[str, Any], rows: int, last: int, remain: int
) -> None:
    plan = Plan(Method(accumulated(), budget=10), Options(**{"queries": "keys", **options}))
    assert plan.rows_next(holding(rows, last)) == remain
    assert plan.due(holding(rows, last)) == (remain < rows)


def test_admitting_rows_leaves_the_layer_that_was_given_as_it_was() -> None:
    plan = Plan(Method(ALIKE, budget=4), Options(queries="keys"))
    keys = mx.random.normal((1, 2, 5, 8), key=mx.random.key(1))
    before = admit(plan, None, keys, keys)
    mx.eval(before.rows.keys, before.rows.position)
    after = admit(plan, before, keys[:, :, :1], keys[:, :, :1])
    mx.eval(after.rows.keys)
    assert before.rows.position.tolist() == [[[0, 1, 2, 3, 4]] * 2]
    assert mx.array_equal(before.rows.keys[:, :, :5], keys).item()
    assert sorted(after.rows.position[0, 0].tolist()) == [1, 2, 3, 4, 5]


def test_one_row_in_and_one_out_keeps_buffers_and_slots(
    stream: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    cache, tokens = EvictingCache(Method(ALIKE, budget=6, n_sink=2), Options(queries="keys")), stream(30)
    feed(cache, tokens, [1] * 7)
    slots = cache.position[0, 0].tolist()
    for newest in range(7, 30):
        feed(cache, tokens, [1])
        assert cache.layer is not None
        assert cache.layer.rows.keys.shape[2] == 7  # the budget and the new row
        expected = [newest if place == newest - 5 else place for place in slots]
        assert cache.position[0, 0].tolist() == expected
        slots = expected


@pytest.mark.parametrize("cut", [[9], [1] * 9, [4, 1, 3, 1]])
def test_centred_keys_lose_the_mean_of_all_keys_so_far_however_they_were_cut(cut: list[int]) -> None:
    plan = Plan(Method(ALIKE, budget=3), Options(queries="centred-keys"))
    keys = mx.random.normal((1, 2, 9, 4), key=mx.random.key(2)).astype(mx.float16)
    layer, found = None, []
    for start, length in zip(np.cumsum([0, *cut]), cut, strict=False):
        now = keys[:, :, int(start) : int(start) + length]
        layer = admit(plan, layer, now, now)
        layer, queries = stand_ins(plan, layer, now)
        found.append(np.array(queries))
    wide = np.array(keys).astype(np.float64)
    mean = np.cumsum(wide, axis=2) / np.arange(1, 10)[:, None]
    np.testing.assert_allclose(np.concatenate(found, axis=2), wide - mean, atol=1e-5)


@pytest.mark.parametrize("lengths", [[20, 1, 1], [1] * 22, [3, 2, 12, 1, 4], [21, 1]])
def test_a_score_is_shown_the_latest_queries_however_they_arrived(
    lengths: list[int], stream: Callable[..., Any], feed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[Any, int]] = []

    def score(held: Held) -> float:
        shown.append((held.last, held.newest))
        return 0.0

    cache = EvictingCache(Method(Scorer(score=score, window=4), budget=10), Options(queries="model"))
    tokens, seen = stream(23), 0
    for length in lengths:
        seen += length
        feed(cache, tokens, [length], scale=0.7)
        if shown:
            block, newest = shown.pop()
            assert newest == seen - length - 1
            assert block.start == newest - 3
            assert block.scale == 0.7
            latest = tokens.queries[:, :, block.start : newest + 1].reshape(1, 2, 2, 4, 8)
            assert mx.array_equal(block.queries, latest).item()
    feed(cache, tokens, [1])
    assert len(shown) == 1
    assert shown[0][1] == 21


def test_a_score_sees_the_rows_after_its_last_observation(
    stream: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    seen = []

    def observe(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
        return {"queries": stats["queries"] + attention.sightings()}

    def score(held: Held) -> Any:
        seen.append(np.array(held.stats["queries"]))
        return held.stats["queries"]

    def init(arrivals: Arrivals) -> Mapping[str, Any]:
        return {"queries": arrivals.full(0.0)}

    cache = EvictingCache(Method(Scorer(score, init, observe), budget=5), Options(queries="model"))
    feed(cache, stream(8), [7, 1])
    assert seen[0][0, 0].tolist() == [7, 6, 5, 4, 3, 2, 1]


def test_temperature_counts_the_tokens_generated(
    stream: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    counted = []

    def temperature(generated: int) -> float:
        counted.append(generated)
        return 1.0

    def observe(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
        return {"mass": stats["mass"] + attention.mass(temperature=temperature)}

    scorer = accumulated()._replace(observe=observe)
    cache = EvictingCache(Method(scorer, budget=50), Options(queries="model"))
    feed(cache, stream(20), [5, 4, 1, 1, 1, 3, 1, 1])
    # a prompt's last token comes alone, so the first single token has nothing generated before it
    assert counted == [0, 0, 0, 1, 2, 0, 0, 1]
