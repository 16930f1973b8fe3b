"""Attention that says what it gave to each row: MLX's own bits, and the rows that are kept without it."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer, accumulated
from vqx.host.weighing import weighed, weighs
from vqx.state.attention import Block
from vqx.state.batch import EvictingBatch

SCORERS = {
    "mass": accumulated(),
    "mass that fades": accumulated(decay=0.9),
    "mass for each query": accumulated(per_sighting=True),
    "the latest query": Scorer(score=lambda held: held.last.fused(), window=1),
    "the latest few": Scorer(score=lambda held: held.last.fused(), window=3),
    "the greatest of a group": Scorer(score=lambda held: held.last.fused(group="max"), window=1),
}


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU has an attention of its own")
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("room", [0, 5])
def test_it_is_mlxs_attention_bit_for_bit(group: int, rows: int, room: int) -> None:
    queries = mx.random.normal((2, 2 * group, 1, 20))
    keys, values = mx.random.normal((2, 2, rows + room, 20)), mx.random.normal((2, 2, rows + room, 12))
    keys, values = keys[:, :, :rows], values[:, :, :rows]
    found, weights = weighed(queries, keys, values, 0.3)
    assert mx.array_equal(found, mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3))
    assert mx.allclose(weights.sum(axis=4), mx.ones((2, 2, group, 1)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("group", [1, 3, 4])
def test_heads_that_share_rows_are_multiplied_at_once(group: int, masked: bool) -> None:
    queries, keys, values = (
        mx.random.normal((3, heads, n, width))
        for heads, n, width in ((2 * group, 1, 20), (2, 90, 20), (2, 90, 12))
    )
    mask = (mx.arange(90) < mx.array([[90], [40], [71]]))[:, None, None] if masked else None
    apart = weighed(queries, keys, values, 0.3, mask)
    for found, other in zip(weighed(queries, keys, values, 0.3, mask, grouped=True), apart, strict=True):
        assert found.shape == other.shape
        np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU has an attention of its own")
def test_of_sequences_that_fill_fewer_rows_too() -> None:
    queries, keys, values = (mx.random.normal((3, heads, n, 20)) for heads, n in ((6, 1), (2, 9), (2, 9)))
    mask = (mx.arange(9) < mx.array([[9], [4], [7]]))[:, None, None]
    found, weights = weighed(queries, keys, values, 0.3, mask)
    plain = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask=mask)
    assert mx.array_equal(found, plain)
    assert mx.array_equal(weights == 0, mx.broadcast_to(~mask[:, None], weights.shape))


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU has an attention of its own")
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("length", [2, 33, 300])
def test_of_a_prompt_too(group: int, length: int) -> None:
    queries = mx.random.normal((2, length, 2 * group, 64)).swapaxes(1, 2)
    keys, values = mx.random.normal((2, 2, 400, 64))[:, :, :300], mx.random.normal((2, 2, 300, 64))
    found, weights = weighed(queries, keys, values, 0.125, "causal")
    plain = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.125, mask="causal")
    assert mx.array_equal(found, plain)
    assert weights.shape == (2, 2, group, length, 300)


def test_what_keeps_fewer_digits_is_left_to_mlx() -> None:
    one = mx.zeros((1, 2, 1, 8), mx.bfloat16)
    assert not weighs(one, one, one)


def kept(scorer: Scorer, interval: int, tokens: Any, shown: bool) -> list[Any]:
    """Rows and statistics after a prompt of 20 tokens and 30 alone, oldest row first."""
    options = Options(queries="model", interval=interval)
    cache = EvictingCache(Method(scorer, 16, n_sink=2, recent=3), options)
    for first, last in [(0, 20), *((at, at + 1) for at in range(20, 50))]:
        queries, keys, values = (array[..., first:last, :] for array in tokens)
        mask = cache.make_mask(last - first)
        read = cache.update_and_fetch(keys, values)
        if shown and cache.takes(keys, mask):
            found, weights = weighed(queries, *read, 0.25, mask)
            cache.observe(queries, read[0], 0.25, mask, None, weights)
            mx.eval(mx.depends([found], cache.loose()))
        else:
            cache.observe(queries, read[0], 0.25, mask, None)
            mx.eval(*read, *cache.loose())
    layer = cache.layer
    order = np.argsort(np.array(layer.rows.position), axis=2)
    columns = layer.rows.position, *layer.rows.columns.values()
    return [np.take_along_axis(np.array(column), order, 2) for column in columns]


@pytest.mark.parametrize("interval", [1, 7])
@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_the_same_rows_are_kept_as_where_it_is_computed_once_more(scorer: Scorer, interval: int) -> None:
    tokens = mx.random.normal((1, 4, 50, 16)), *mx.random.normal((2, 1, 2, 50, 16))
    position, *columns = kept(scorer, interval, tokens, shown=True)
    wanted, *others = kept(scorer, interval, tokens, shown=False)
    assert np.array_equal(position, wanted)
    for column, other in zip(columns, others, strict=True):
        np.testing.assert_allclose(column, other, rtol=2e-5, atol=1e-7)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The queries of each tile whose logits are computed from now on."""
    lengths: list[int] = []
    logits = Block._logits

    def counted(block: Block, first: int, last: int) -> mx.array:
        lengths.append(block.length)
        return logits(block, first, last)

    monkeypatch.setattr(Block, "_logits", counted)
    return lengths


@pytest.mark.parametrize("interval", [1, 7])
@pytest.mark.parametrize("name", ["mass", "mass that fades", "mass for each query", "the latest query"])
def test_no_logits_are_computed_once_more(name: str, interval: int, asked: list[int]) -> None:
    tokens = mx.random.normal((1, 4, 50, 16)), *mx.random.normal((2, 1, 2, 50, 16))
    kept(SCORERS[name], interval, tokens, shown=True)
    assert len(asked) <= 1  # the prompt's latest query, where its weights alone are asked for
    asked.clear()
    kept(SCORERS[name], interval, tokens, shown=False)
    assert sum(length < 20 for length in asked) > 3


def kept_of_two(scorer: Scorer, interval: int, tokens: Any, shown: bool) -> list[Any]:
    """Positions after prompts of 20 and 17 tokens, and 30 more of each in one batch; oldest row first."""
    options = Options(queries="model", interval=interval)
    method = Method(scorer, 16, n_sink=2, recent=3)
    singles = [EvictingCache(method, options) for _ in range(2)]
    for number, (single, length) in enumerate(zip(singles, (20, 17), strict=True)):
        queries, keys, values = (array[number : number + 1, :, :length] for array in tokens)
        read = single.update_and_fetch(keys, values)
        single.observe(queries, read[0], 0.25, "causal", None)
    batch = EvictingBatch(singles)
    for at in range(30):
        each = ((array[:1, :, 20 + at], array[1:, :, 17 + at]) for array in tokens)
        queries, keys, values = (mx.concatenate([one, other])[:, :, None] for one, other in each)
        read = batch.update_and_fetch(keys, values)
        ((_, _, mask),) = batch.masks(None, 4, 1)
        weights = None
        if shown and batch.takes(read[0], mask):
            weights = weighed(queries, *read, 0.25, mask)[1]
        batch.observe(queries, read[0], 0.25, mask, None, weights)
        mx.eval(*read, *batch.loose())
    return [np.sort(np.array(batch.extract(i).position), axis=2) for i in range(2)]


@pytest.mark.parametrize("interval", [1, 7])
@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_a_batch_keeps_the_same_rows_too(scorer: Scorer, interval: int, asked: list[int]) -> None:
    tokens = mx.random.normal((2, 4, 50, 16)), *mx.random.normal((2, 2, 2, 50, 16))
    wanted, without = kept_of_two(scorer, interval, tokens, shown=False), len(asked)
    asked.clear()
    for position, other in zip(kept_of_two(scorer, interval, tokens, shown=True), wanted, strict=True):
        assert np.array_equal(position, other)
    once = scorer.decay is not None or scorer is SCORERS["the latest query"]
    assert len(asked) <= 4 if once else len(asked) == without  # those of prompts


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_prompts_mass_is_that_of_its_weights(decay: float, noisy: bool) -> None:
    queries = mx.random.normal((2, 6, 30, 16))
    keys, values = mx.random.normal((2, 2, 2, 50, 16))
    position = mx.broadcast_to(mx.arange(50, dtype=mx.int32), (2, 2, 50))
    block = Block(queries.reshape(2, 2, 3, 30, 16), keys, position, 20, 0.25)
    told = block._replace(given=weighed(queries, keys, values, 0.25, "causal")[1])
    noise = 3 * mx.random.normal((2, 2, 50)) if noisy else None
    gained = told.mass(decay=decay, noise=noise)
    np.testing.assert_allclose(gained, block.mass(decay=decay, noise=noise), rtol=2e-5, atol=1e-7)
    options = {"decay": decay, "noise": noise, "temperature": lambda _: 2.0}
    assert mx.array_equal(told.mass(**options), block.mass(**options))  # of other weights
