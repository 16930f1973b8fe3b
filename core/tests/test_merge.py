"""Values of rows that go may be merged into those that stay: when it happens, and what it leaves alone."""

import vqx  # noqa: F401  # before mlx

# isort: split

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx import EvictingCache, Held, Method, Options, Scorer
from vqx.state.positions import rotary_of

ENGINES = [
    Options(queries="model"),
    Options(queries="model", interval=3),
    Options(queries="model", prompt="whole"),
    Options(queries="model", positions="compact"),
]


def newest_first(held: Held) -> Any:
    """Every second row stays, and of those the newest."""
    return held.position - 100 * (held.position % 2)


def into_the_newest(held: Held, gone: mx.array) -> mx.array:
    """All that goes is added to the newest row."""
    lost = mx.sum(mx.where(gone[..., None], held.values.astype(mx.float32), 0), axis=2, keepdims=True)
    newest = (held.position == held.newest)[..., None]
    return held.values.astype(mx.float32) + mx.where(newest, lost, 0)


def cache(engine: Options, merge: Any = into_the_newest) -> EvictingCache:
    rotary = rotary_of(nn.RoPE(8), 8) if engine.positions == "compact" else None
    method = Method(Scorer(score=newest_first), budget=6, n_sink=1, recent=1, merge=merge)
    return EvictingCache(method, engine, rotary=rotary)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("lengths", [[20, *[1] * 20], [5, 9, 1, 8, *[1] * 9]], ids=str)
def test_nothing_is_lost_and_each_merge_happens_once(
    engine: Options, lengths: list[int], stream: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    tokens, merging, seen = stream(40), cache(engine), 0
    for length in lengths:
        feed(merging, tokens, [length])
        seen += length
        _, values = merging.keys_and_values()
        total = mx.sum(tokens.values[:, :, :seen], axis=2)
        assert np.allclose(mx.sum(values, axis=2), total, rtol=1e-4, atol=1e-4)
    assert merging.tokens_kept < seen


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_rows_kept_are_those_of_the_method_without_merging(
    engine: Options, stream: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    tokens = stream(40)
    one, other = cache(engine), cache(engine, merge=None)
    for length in [9, 8, *[1] * 20]:
        feed(one, tokens, [length])
        feed(other, tokens, [length])
        assert mx.array_equal(one.position, other.position).item()
        assert mx.array_equal(one.keys_and_values()[0], other.keys_and_values()[0]).item()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_row_that_gets_nothing_keeps_its_bits(
    dtype: mx.Dtype, stream: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    tokens = stream(40, dtype=dtype)

    def into_sinks(held: Held, gone: mx.array) -> mx.array:
        return held.values.astype(mx.float32) + (held.position == 0)[..., None]

    merging = cache(ENGINES[0], merge=into_sinks)
    feed(merging, tokens, [9, 8, *[1] * 10])
    _, values = merging.keys_and_values()
    assert values.dtype == dtype
    where = merging.position[..., None]
    untouched = mx.array_equal(
        mx.where(where == 0, 0, values), mx.where(where == 0, 0, _offered(tokens, where))
    )
    assert untouched.item()
    assert not mx.array_equal(values, _offered(tokens, where)).item()


def _offered(tokens: Any, where: mx.array) -> mx.array:
    return mx.take_along_axis(tokens.values, where, axis=2)


def test_merging_in_token_cadence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cadence='token': .* merges values.*use cadence='block'"):
        cache(Options(queries="keys", cadence="token"))


def test_what_goes_is_marked_whatever_slot_it_stands_in(
    stream: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    marked = []

    def note(held: Held, gone: mx.array) -> mx.array:
        marked.append((np.array(held.position), np.array(gone)))
        return held.values

    tokens, merging = stream(40), cache(ENGINES[0], merge=note)
    feed(merging, tokens, [6])
    assert not marked, "nothing goes while the budget holds all"
    feed(merging, tokens, [4, *[1] * 12])
    for before, (position, gone) in enumerate(marked):
        assert (gone.sum(axis=2) == position.shape[2] - 6).all()
        assert not gone[position == 0].any()
        if before + 1 < len(marked):
            following = marked[before + 1][0]
            for h in range(2):
                stayed = set(position[0, h][~gone[0, h]].tolist())
                assert stayed <= set(following[0, h].tolist())
                assert not set(position[0, h][gone[0, h]].tolist()) & set(following[0, h].tolist())
    assert len(marked) == 12
