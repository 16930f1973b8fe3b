"""Token cadence by kernels: the rows and statistics of the loop in NumPy that defines it."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import kernels
from vqx.options import Options, Queries
from vqx.state import replay
from vqx.testing import Shape, stream
from vqx.testing.driving import cache_of, forward
from vqx_kernels.testing import emulated

METHODS: dict[str, dict[str, Any]] = {
    "h2o": {},
    "h2o in sums that fade": {"normalise": None, "decay": 0.9, "recent": 4},
    "keyformer": {"tau": 2.0, "recent": 4},
    "keyformer inside the softmax": {"noise": "logit", "recent": 4},
    "tova": {},
    "tova of each head": {"heads": "each", "keep_newest": False},
    "morphkv": {"window": 5},
    "morphkv of old rows": {"window": 4, "over": "old", "fuse": "max", "group": "logits"},
}
CUTS = (50, 1, 1, 30, 2, 40, 1)  # a block is decided when the next token comes


def kept(
    target: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    queries: Queries = "model",
    cuts: tuple[int, ...] = CUTS,
    dtype: mx.Dtype = mx.float32,
) -> tuple[list[np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]], int]:
    """Positions after each forward, the statistics at the end, and how many tiles a kernel worked through."""
    monkeypatch.setattr(kernels, "at_once", lambda: target)
    monkeypatch.setattr(replay, "TILE", 32)
    done: list[str] = []
    usual = kernels.replayed

    def counted(*given: Any, **how: Any) -> Any:
        found = usual(*given, **how)
        done.extend([target] * (found is not None))
        return found

    monkeypatch.setattr(kernels, "replayed", counted)
    tokens = stream("gaussian", 5, Shape(sum(cuts), width=36)).astype(dtype)
    method = name.split()[0]
    cache = cache_of(method, Options(queries=queries, cadence="token"), budget=24, **METHODS[name])
    held, first = [], 0
    for length in cuts:
        forward(cache, tokens.cut(first, first + length))
        first += length
        held.append(np.sort(np.array(cache.position), axis=2))
    layer = cache._layer
    assert layer is not None
    assert layer.evicted
    order = np.argsort(np.array(layer.rows.position), axis=2)
    columns = {n: np.take_along_axis(np.array(c), order, axis=2) for n, c in layer.rows.columns.items()}
    monkeypatch.setattr(kernels, "replayed", usual)
    return held, columns, len(done)


@pytest.mark.parametrize("queries", ["model", "centred-keys"])
@pytest.mark.parametrize("name", METHODS)
def test_the_hosts_loops_keep_the_rows_of_the_definition(
    name: str, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, columns, none = kept("reference", name, monkeypatch, queries)
    found, others, tiles = kept("host", name, monkeypatch, queries)
    assert (none, tiles) == (0, 6)  # 50, 30, 2 and 40 tokens in tiles of 32
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(other, one)
    assert columns.keys() == others.keys()
    for statistic, column in columns.items():
        np.testing.assert_allclose(others[statistic], column, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_rows_in_sixteen_bits_are_read_as_what_they_are(
    dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _, _ = kept("reference", "h2o", monkeypatch, dtype=dtype)
    found, _, tiles = kept("host", "h2o", monkeypatch, dtype=dtype)
    assert tiles == 6
    np.testing.assert_array_equal(found[-1], wanted[-1])


@pytest.mark.parametrize("target", ["metal", "cuda"])
@pytest.mark.parametrize("name", ["h2o", "keyformer inside the softmax", "tova", "morphkv of old rows"])
def test_an_emulated_device_has_the_bits_of_the_host(
    target: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = (34, 1, 9, 1)
    wanted, columns, _ = kept("host", name, monkeypatch, cuts=cuts)
    with emulated():
        found, others, tiles = kept(target, name, monkeypatch, cuts=cuts)
    assert tiles == 3
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(other, one)
    for statistic, column in columns.items():
        np.testing.assert_array_equal(others[statistic], column)


def test_a_window_that_few_queries_fill_is_left_to_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows held without their queries, as a text cut off in token cadence may leave them."""
    method = cache_of("morphkv", Options(queries="model", cadence="token"), budget=24, window=8).plan.method
    position = mx.broadcast_to(mx.arange(30, dtype=mx.int32), (1, 2, 30))
    monkeypatch.setattr(kernels, "at_once", lambda: "host")

    def never() -> mx.array:
        raise AssertionError

    asked: dict[str, Any] = {"new": 10, "start": 20, "sinks": None}
    assert kernels.replayed(method, never, position, {}, earlier=0, **asked) is None  # 5 queries of 8
    with pytest.raises(AssertionError):
        kernels.replayed(method, never, position, {}, earlier=7, **asked)
