"""Token cadence: a forward of S tokens is as good as S forwards of one."""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import Arrivals, EvictingCache, Held, Method, Options, Scorer, accumulated
from vqx.state import replay
from vqx.state.attention import Block
from vqx.state.replay import HostBlock
from vqx.stream import Kept, advance

Array = np.ndarray[Any, Any]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # NumPy's and MLX's exponentials differ in the last bits of float32
FORWARDS = (7, 1, 30, 1, 1, 20, 1)


def noise(arrivals: Arrivals) -> Array:
    """Numbers that depend on head and position alone."""
    place = np.arange(arrivals.start, arrivals.start + arrivals.length)
    return arrivals.full(0.0) + np.sin(7.0 * place + 1.3 * np.arange(arrivals.heads)[:, None]).astype(
        np.float32
    )


def noisy(*, itself: bool) -> Scorer:
    """Noise and a temperature inside the softmax that is accumulated."""

    def init(arrivals: Arrivals) -> Mapping[str, Any]:
        return {"mass": arrivals.full(0.0), "noise": noise(arrivals)}

    def observe(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
        gained = attention.mass(itself=itself, temperature=lambda generated: 1.7, noise=stats["noise"])
        return {**stats, "mass": stats["mass"] + gained}

    return Scorer(score=lambda held: held.stats["mass"], init=init, observe=observe)


def seldom_seen(*, itself: bool) -> Scorer:
    """The mean share over the queries that could see a row."""
    mass = accumulated(itself=itself)

    def init(arrivals: Arrivals) -> Mapping[str, Any]:
        return {**mass.init(arrivals), "seen": arrivals.full(0.0)}

    def observe(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
        gathered = mass.observe(stats, attention) if mass.observe else stats
        return {**gathered, "seen": stats["seen"] + attention.sightings(itself=itself)}

    def score(held: Held) -> Any:
        seen = held.stats["seen"]
        return held.stats["mass"] / (seen + (seen == 0))

    return Scorer(score=score, init=init, observe=observe)


def windowed(window: int, **how: Any) -> Scorer:
    """The weights of the latest queries."""

    def score(held: Held) -> Any:
        return held.last.weights(**how).mean(axis=2).mean(axis=2)

    return Scorer(score=score, window=window)


def both(window: int) -> Scorer:
    """Statistics and a window in one."""
    late = windowed(window)
    return accumulated()._replace(score=lambda held: held.stats["mass"] + late.score(held), window=window)


SCORERS = {
    "mass": accumulated(),
    "decay": accumulated(decay=0.9),
    "not itself": accumulated(itself=False),
    "noise": noisy(itself=True),
    "noise, not itself": noisy(itself=False),
    "sightings": seldom_seen(itself=True),
    "sightings, not itself": seldom_seen(itself=False),
    "last query": windowed(1),
    "window": windowed(5),
    "window over old rows": windowed(4, old=4),
    "window of fused logits": windowed(3, fuse_logits="sum"),
    "window that looks ahead": windowed(6, causal=False),
    "mass and window": both(4),
    "newest": Scorer(score=lambda held: 0.0),
}
SINKS = mx.array([6.0, -3.0, 2.0, 5.0])


@pytest.fixture(params=[256, 1, 3, 8], ids=lambda tokens: f"tiles of {tokens}")
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "TILE", request.param)


def caches(method: Method, queries: Any = "model") -> tuple[EvictingCache, EvictingCache]:
    return tuple(
        EvictingCache(method, Options(queries=queries, cadence=cadence)) for cadence in ("token", "block")
    )  # type: ignore[return-value]


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("queries", ["model", "keys", "centred-keys"])
@pytest.mark.parametrize("name", SCORERS)
def test_a_forward_of_many_tokens_equals_that_many_forwards_of_one(
    name: str, queries: str, stream: Callable[..., Any], feed: Callable[..., Any], kept: Callable[..., Any]
) -> None:
    tokens = stream(sum(FORWARDS), batch=2)
    many, single = caches(Method(SCORERS[name], budget=12, n_sink=1, recent=4), queries)
    for length in FORWARDS:
        feed(many, tokens, [length])
        feed(single, tokens, [1] * length)
        if length == 1:  # what was pending is settled
            left, right = kept(many), kept(single)
            np.testing.assert_array_equal(left.pop("position"), right.pop("position"))
            for statistic in right:
                np.testing.assert_allclose(left[statistic], right[statistic], **CLOSE)
    assert single.tokens_seen == 61
    assert single.size() == 13


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("name", ["mass", "window", "window of fused logits"])
def test_learned_sinks_and_the_models_own_scale_are_replayed(
    name: str, stream: Callable[..., Any], feed: Callable[..., Any], kept: Callable[..., Any]
) -> None:
    tokens = stream(sum(FORWARDS))
    many, single = caches(Method(SCORERS[name], budget=12, n_sink=1, recent=4))
    without, _ = caches(Method(SCORERS[name], budget=12, n_sink=1, recent=4))
    for length in FORWARDS:
        feed(many, tokens, [length], sinks=SINKS, scale=0.7)
        feed(single, tokens, [1] * length, sinks=SINKS, scale=0.7)
        feed(without, tokens, [length], scale=0.7)
    np.testing.assert_array_equal(kept(many)["position"], kept(single)["position"])
    assert np.any(kept(many)["position"] != kept(without)["position"])


@pytest.mark.parametrize("recent", [0, 3])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_token_cadence_is_the_loop_that_a_reader_would_write(
    dtype: mx.Dtype,
    recent: int,
    stream: Callable[..., Any],
    feed: Callable[..., Any],
    kept: Callable[..., Any],
) -> None:
    budget, n_sink, decay = 9, 2, 0.95
    tokens = stream(41, heads=1, group=2, dtype=dtype)
    cache, _ = caches(Method(accumulated(decay=decay), budget, n_sink, recent))
    feed(cache, tokens, [25, 15, 1])

    queries = np.array(tokens.queries.astype(mx.float32)).astype(np.float64)[0]
    keys = np.array(tokens.keys.astype(mx.float32)).astype(np.float64)[0, 0]
    mass: dict[int, float] = {}
    for token in range(41):
        if len(mass) > budget:
            old = {p: m for p, m in mass.items() if n_sink <= p <= token - 1 - recent}
            del mass[min(old, key=lambda p: (old[p], p))]
        mass = {p: m * decay for p, m in mass.items()} | {token: 0.0}
        for query in queries:
            powers = {p: np.exp(query[token] @ keys[p] / np.sqrt(8)) for p in mass}
            for p in mass:
                mass[p] += powers[p] / sum(powers.values()) / 2
    found = kept(cache)
    assert found["position"][0, 0].tolist() == sorted(mass)
    np.testing.assert_allclose(found["mass"][0, 0], [mass[p] for p in sorted(mass)], **CLOSE)


HOW: list[Mapping[str, Any]] = [
    {},
    {"old": 3},
    {"fuse_logits": "sum"},
    {"fuse_logits": "max", "old": 2},
    {"fuse_logits": "max"},
    {"causal": False},
]


@pytest.mark.parametrize("sinks", [None, SINKS], ids=["", "sinks"])
@pytest.mark.parametrize("length", [1, 4])
def test_the_hosts_attention_is_the_devices(length: int, sinks: mx.array | None) -> None:
    random = np.random.default_rng(0)
    queries, keys = random.normal(size=(1, 2, 2, length, 8)), random.normal(size=(1, 2, 10, 8))
    position = random.permutation(np.arange(5, 15))[None, None].repeat(2, 1)
    position[position >= 15 - length] += 20
    start = 35 - length
    device = Block(*(mx.array(a.astype(np.float32)) for a in (queries, keys)), mx.array(position), start, 0.5)
    device = device._replace(sinks=sinks)
    logits = np.einsum("bhgsd,bhnd->bhgsn", queries, keys).astype(np.float32) * np.float32(0.5)
    shaped = None if sinks is None else np.array(sinks).reshape(1, 2, 2, 1, 1)
    host = HostBlock(logits, position, start, shaped)
    for how in HOW:
        np.testing.assert_allclose(host.weights(**how), np.array(device.weights(**how)), **CLOSE)
    if length > 1:
        return
    offset = random.normal(size=(1, 2, 10)).astype(np.float32)
    for itself in (True, False):
        np.testing.assert_array_equal(
            host.sightings(itself=itself), np.array(device.sightings(itself=itself))
        )
        for added in (None, offset):
            at = {"itself": itself, "temperature": lambda generated: 1.5}
            left = host.mass(**at, noise=added)
            right = device.mass(**at, noise=None if added is None else mx.array(added))
            np.testing.assert_allclose(left, np.array(right), **CLOSE)


def test_no_score_outranks_a_protected_row(
    stream: Callable[..., Any], feed: Callable[..., Any], kept: Callable[..., Any]
) -> None:
    endless = Scorer(score=lambda held: np.inf)
    cache, _ = caches(Method(endless, budget=6, n_sink=2, recent=1))
    feed(cache, stream(30), [29, 1])
    assert kept(cache)["position"][0, 0].tolist() == [0, 1, 25, 26, 27, 28, 29]


def advanced(method: Method, tokens: Any, lengths: list[int]) -> Kept:
    held, start = Kept(None, None, None, {}, mx.array(0)), 0  # type: ignore[arg-type]
    for length in lengths:
        new = tokens.keys[..., start : start + length, :], tokens.values[..., start : start + length, :]
        held = advance(method, held.keys, held.values, held.positions, held.columns, *new, start)
        start += length
    return held


@pytest.mark.parametrize("name", ["not itself", "noise, not itself", "window", "newest"])
def test_a_stream_does_not_depend_on_how_it_was_cut(name: str, stream: Callable[..., Any]) -> None:
    method = Method(SCORERS[name], budget=8, n_sink=1, recent=1)
    whole = advanced(method, stream(50), [50])
    for lengths in ([1] * 50, [7, 40, 3]):
        pieces = advanced(method, stream(50), lengths)
        assert pieces.positions.tolist() == whole.positions.tolist()
        for statistic, column in whole.columns.items():
            np.testing.assert_allclose(np.array(pieces.columns[statistic]), np.array(column), **CLOSE)


def test_a_stream_keeps_what_a_cache_with_key_queries_keeps(
    stream: Callable[..., Any], feed: Callable[..., Any], kept: Callable[..., Any]
) -> None:
    tokens, method = stream(51), Method(accumulated(itself=False, decay=0.98), budget=8, n_sink=1, recent=1)
    cache, _ = caches(method, "keys")
    feed(cache, tokens, [50, 1])
    held = advanced(
        method, tokens._replace(keys=tokens.keys[..., :50, :], values=tokens.values[..., :50, :]), [50]
    )
    before = [row[:-1] for row in kept(cache)["position"][0].tolist()]
    assert held.positions[0].tolist() == before
    np.testing.assert_array_equal(np.array(held.values[..., 0]), np.array(held.positions))


def test_a_streams_lanes_are_free_and_never_mix(stream: Callable[..., Any]) -> None:
    tokens, method = stream(30, batch=2, heads=3), Method(accumulated(itself=False), budget=6, recent=1)
    whole = advanced(method, tokens, [30])
    lane = advanced(method, tokens._replace(keys=tokens.keys[1, 2], values=tokens.values[1, 2]), [30])
    assert lane.keys.shape == (6, 8)
    assert lane.indices.shape == (6,)
    assert lane.positions.tolist() == whole.positions[1, 2].tolist()
