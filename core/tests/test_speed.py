"""What makes a step cheap, watched as structure: no waiting for the device, small graphs, no copies."""

import gc
import io
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer, accumulated
from vqx.state import constants
from vqx.state.positions import rotary_of

ALIKE = Scorer(score=lambda held: 0.0)
LATEST = Scorer(score=lambda held: held.last.weights().mean(axis=2).mean(axis=2), window=4)
HEADS, GROUP, WIDTH = 3, 3, 64


def forward(cache: EvictingCache, length: int) -> list[mx.array]:
    """One forward of random tokens; what mlx-lm evaluates after it."""
    queries = mx.random.normal((1, HEADS * GROUP, length, WIDTH))
    keys, values = mx.random.normal((2, 1, HEADS, length, WIDTH))
    mx.eval(queries, keys, values)
    return shown(cache, queries, keys, values)


def shown(cache: EvictingCache, queries: mx.array, keys: mx.array, values: mx.array) -> list[mx.array]:
    mask = cache.make_mask(keys.shape[2])
    read = cache.update_and_fetch(keys, values)
    cache.observe(queries, read[0], 0.125, mask, None)
    return [*read, *cache.state]


class Waited(AssertionError):
    """Something asked for the numbers in an array."""


@contextmanager
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it, whatever would wait for the device raises."""

    def waiting(*_: Any, **__: Any) -> Any:
        raise Waited

    def checked(convert: Callable[..., Any]) -> Callable[..., Any]:
        return lambda given, *rest, **more: (
            waiting() if isinstance(given, mx.array) else convert(given, *rest, **more)
        )

    with monkeypatch.context() as patch:
        for name in (
            "item",
            "tolist",
            "__array__",
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
            "__iter__",
        ):
            patch.setattr(mx.array, name, waiting, raising=False)
        for name in ("eval", "async_eval", "synchronize"):
            patch.setattr(mx, name, waiting)
        for name in ("array", "asarray"):
            patch.setattr(np, name, checked(getattr(np, name)))
        yield


def test_the_watch_itself_notices_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    asking: list[Callable[[mx.array], Any]] = [
        lambda a: a.item(),
        lambda a: a.tolist(),
        lambda a: np.array(a),
        lambda a: np.asarray(a),
        lambda a: bool(a),
        lambda a: int(a),
        lambda a: float(a),
        lambda a: [0, 1][a],
        lambda a: list(a),
        lambda a: mx.eval(a),
    ]
    with nobody_waits(monkeypatch):
        for ask in asking:
            with pytest.raises(Waited):
                ask(mx.array(1))


@pytest.mark.parametrize(
    "engine",
    [{}, {"cadence": "token"}, {"interval": 8}, {"prompt": "whole"}, {"positions": "compact"},
     {"queries": "centred-keys"}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scorer", [ALIKE, LATEST, accumulated()], ids=["alike", "window", "mass"])
def test_fifty_tokens_never_wait_for_the_device(
    scorer: Scorer, engine: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rotary = rotary_of(nn.RoPE(WIDTH), WIDTH) if "positions" in engine else None
    options = Options(**{"queries": "model", **engine})
    cache = EvictingCache(Method(scorer, 16, n_sink=2, recent=2), options, rotary=rotary)
    for length in (20, 1, 1):  # the one look at a chunk's NaN, and a replay, are behind us
        mx.eval(forward(cache, length))
    rows = mx.random.normal((50, 3, 1, HEADS * GROUP, 1, WIDTH))
    tokens = [
        (q, k[:, :HEADS], v[:, :HEADS])
        for q, k, v in ((rows[i, 0], rows[i, 1], rows[i, 2]) for i in range(50))
    ]
    with nobody_waits(monkeypatch):
        for queries, keys, values in tokens:
            found = shown(cache, queries, keys, values)
    mx.eval(found)
    assert cache.tokens_seen == 72
    assert cache.tokens_kept <= 16 + options.interval - 1
    assert cache.position.max().item() == 71


def operations(arrays: list[mx.array]) -> int:
    """Nodes of the graph that evaluating these arrays would run: the boxes of its drawing."""
    drawing = io.StringIO()
    mx.export_to_dot(drawing, *arrays)
    return drawing.getvalue().count("shape=rectangle")


@pytest.mark.parametrize(("engine", "most"), [({}, 110), ({"cadence": "token"}, 62)], ids=str)
@pytest.mark.parametrize("scorer", [ALIKE, LATEST, accumulated()], ids=["alike", "window", "mass"])
def test_a_long_prompt_leaves_a_small_graph(scorer: Scorer, engine: Mapping[str, Any], most: int) -> None:
    """3,200 tokens in chunks of 512: at most 110 operations a layer and chunk, 3,300 in a model of 30 layers.

    Counted before each evaluation, as mlx-lm evaluates every cache's state after a chunk.
    """
    options = Options(**{"queries": "model", **engine})
    cache = EvictingCache(Method(scorer, 256, n_sink=4, recent=64), options)
    counted, alive, active = [], [], []
    for length in [512] * 6 + [127, 1, 1, 1]:
        found = forward(cache, length)
        counted.append(operations(found))
        mx.eval(found)
        found = []
        constants._counted.cache_clear()  # a few that all layers share, up to a bound
        alive.append(sum(isinstance(one, mx.array) for one in gc.get_objects()))
        active.append(mx.get_active_memory())
    assert cache.tokens_seen == 3202
    assert cache.tokens_kept == 256
    assert max(counted) <= most
    assert len(set(counted[1:6])) == 1, "the graph grows from chunk to chunk"
    assert len(set(alive[1:6])) == 1, "arrays pile up from chunk to chunk"
    assert max(active[1:6]) - min(active[1:6]) < 2**16, "memory grows from chunk to chunk"
    assert counted[-1] == counted[-2], "the graph grows from token to token"


@pytest.mark.parametrize("budget", [16, 1000])
@pytest.mark.parametrize("queries", ["model", "centred-keys"])
@pytest.mark.parametrize("scorer", [ALIKE, LATEST, accumulated()], ids=["alike", "window", "mass"])
def test_what_a_step_leaves_unevaluated_does_not_pile_up(scorer: Scorer, queries: Any, budget: int) -> None:
    """mlx-lm evaluates a step's logits, not the caches: statistics ride along with the next token."""
    cache = EvictingCache(Method(scorer, budget, n_sink=2), Options(queries=queries))
    counted = []
    for _ in range(60):
        keys, values, *state = forward(cache, 1)
        mx.eval(keys, values)  # as attention reads them
        counted.append(operations(state))
    assert len(set(counted[20:])) == 1
    assert counted[-1] < 60


def decoding(budget: int, scorer: Scorer = ALIKE) -> EvictingCache:
    cache = EvictingCache(Method(scorer, budget, n_sink=4), Options(queries="model"))
    for length in (budget, 5, *[1] * 5):
        mx.eval(forward(cache, length))
    return cache


def seconds(cache: EvictingCache) -> float:
    queries = mx.zeros((1, HEADS * GROUP, 1, WIDTH))
    keys, values = mx.random.normal((2, 1, HEADS, 1, WIDTH))
    mx.eval(queries, keys, values)
    start = time.perf_counter()
    mx.eval(shown(cache, queries, keys, values)[2:])
    return time.perf_counter() - start


def test_four_times_the_rows_cost_less_than_three_times_the_time() -> None:
    """An update alone: one row is written, whatever the number of rows; a copy would cost four times."""
    small, large = decoding(512), decoding(2048)
    taken = [(seconds(small), seconds(large)) for _ in range(80)]
    assert statistics.median(b for _, b in taken) < 3 * statistics.median(a for a, _ in taken)


@pytest.mark.parametrize("scorer", [ALIKE, accumulated()], ids=["alike", "mass"])
def test_a_row_is_written_in_place_and_the_cache_is_never_copied(scorer: Scorer) -> None:
    cache = decoding(2048, scorer)
    assert cache.layer is not None
    buffer = cache.layer.rows.keys.nbytes
    gc.collect()  # what other tests left would be freed while it is counted
    for _ in range(20):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        found = forward(cache, 1)[2:]
        mx.eval(found)
        del found
        assert mx.get_peak_memory() - before < buffer / 2
        assert abs(mx.get_active_memory() - before) < 2**14
    assert cache.layer.rows.keys.shape[2] == 2049


@pytest.mark.parametrize("positions", ["absolute", "compact"])
@pytest.mark.parametrize("scorer", [ALIKE, LATEST, accumulated()], ids=["alike", "window", "mass"])
def test_between_two_cuts_a_token_is_written_and_nothing_else(scorer: Scorer, positions: Any) -> None:
    """Two writes and two views, as in mlx-lm's KVCache; what the scorer wants waits for the cut.

    Keys in compact positions are turned where a run begins, a token after the cut.
    """
    rotary = rotary_of(nn.RoPE(WIDTH), WIDTH) if positions == "compact" else None
    options = Options(queries="model", interval=8, positions=positions)
    cache = EvictingCache(Method(scorer, 64, n_sink=4), options, rotary=rotary)
    mx.eval(forward(cache, 80))
    counted = []
    for _ in range(32):
        queries = mx.zeros((1, HEADS * GROUP, 1, WIDTH))
        keys, values = mx.random.normal((2, 1, HEADS, 1, WIDTH))
        mx.eval(queries, keys, values)
        read = cache.update_and_fetch(keys, values)
        if not cache.goes_on(queries, read[0], 0.125, None):  # as the attention hook asks
            cache.observe(queries, read[0], 0.125, None, None)
        counted.append(operations([*read]))
        mx.eval(*read)
    busy = (0, 7) if positions == "absolute" else (0, 1, 7)
    usual = [count for number, count in enumerate(counted) if number % 8 not in busy]
    assert set(usual) == {4}
    cuts = map(max, counted[7::8], counted[8::8])  # decided with the token before, or where it is asked for
    assert min(cuts) > 10, "no cut was made where one was due"
    assert cache.tokens_seen == 112


@pytest.mark.parametrize("scorer", [ALIKE, accumulated()], ids=["alike", "mass"])
def test_the_cache_is_never_copied_between_two_cuts_nor_by_one(scorer: Scorer) -> None:
    cache = EvictingCache(Method(scorer, 2048, n_sink=4), Options(queries="model", interval=16))
    for length in (2048, *[1] * 20):
        mx.eval(forward(cache, length))
    buffers = 2 * HEADS * 2048 * WIDTH * 4
    peaks = []
    for _ in range(32):
        queries = mx.zeros((1, HEADS * GROUP, 1, WIDTH))
        keys, values = mx.random.normal((2, 1, HEADS, 1, WIDTH))
        mx.eval(queries, keys, values)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        read = cache.update_and_fetch(keys, values)
        cache.observe(queries, read[0], 0.125, None, None)
        mx.eval(*read, *cache.loose())  # as attention ties them together
        del read
        peaks.append(mx.get_peak_memory() - before)
    assert max(peaks) < buffers  # the logits of 16 queries take half as much
    assert cache.tokens_kept < 2048 + 16 < cache.tokens_seen - 16, "no two cuts were made"
