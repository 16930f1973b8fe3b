"""Heads that share a budget: all their rows in one lane, told apart by a mask."""

from collections.abc import Callable
from typing import Any

import vqx  # noqa: F401  (before mlx)

# isort: split

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx import EvictingCache, Held, Method, Options, Scorer, accumulated
from vqx.host.watching import watch_attention
from vqx.state.processes import Processes

Feed = Callable[..., Any]
MODEL = Options(queries="model")
LATEST = Scorer(score=lambda held: held.last.weights().mean(axis=3).mean(axis=2), window=3)


def pooled(cache: EvictingCache) -> list[list[set[int]]]:
    """For each sequence and head the positions of the rows held."""
    assert cache.layer is not None
    rows = cache.layer.rows
    position, head = np.array(rows.position[:, 0]), np.array(rows.columns["head"][:, 0])
    heads = range(cache.layer.heads)
    return [[{*p[h == each].tolist()} for each in heads] for p, h in zip(position, head, strict=True)]


@pytest.mark.parametrize("scorer", [accumulated(), LATEST], ids=["mass", "latest"])
@pytest.mark.parametrize("lengths", [[40], [9, 1, 1, 14, 1, 1, 1, 7, 5], [1] * 40], ids=len)
@pytest.mark.parametrize("interval", [1, 4])
def test_with_a_floor_of_the_whole_budget_each_head_keeps_its_own_rows(
    scorer: Scorer, lengths: list[int], interval: int, stream: Feed, feed: Feed
) -> None:
    tokens, options = stream(44, batch=2, heads=3), Options(queries="model", interval=interval)
    apart, together = (EvictingCache(Method(scorer, 12, 2, 3, floor=floor), options) for floor in (None, 1.0))
    for cache in (apart, together):
        feed(cache, tokens, [*lengths, 1, 1, 1])
    assert together.layer is not None
    assert together.layer.heads == 3
    assert pooled(together) == [[{*lane} for lane in row] for row in apart.position.tolist()]
    for name in ("tokens_kept", "tokens_seen", "kept_bytes", "full_seq_bytes", "compression_ratio"):
        assert getattr(together, name) == getattr(apart, name), name
    if scorer is not LATEST:
        sums = [cache.layer.rows.columns["mass"].sum().item() for cache in (apart, together) if cache.layer]
        np.testing.assert_allclose(*sums, rtol=1e-5)


def test_rows_go_to_the_heads_that_use_them_and_memory_is_their_sum(stream: Feed, feed: Feed) -> None:
    tokens = stream(60, batch=2, heads=2)
    # head 0 looks at few rows, head 1 at all alike: it has the greater share of the ranking's tail
    queries = tokens.queries * mx.array([9.0, 9.0, 0.1, 0.1])[:, None, None]
    cache = EvictingCache(Method(LATEST, 12, 1, 3, floor=0.5), MODEL)
    feed(cache, tokens._replace(queries=queries), [30, *[1] * 30])
    for first, second in pooled(cache):
        assert len(first) + len(second) == 24 + 2  # one token waits for its cut
        assert min(len(first), len(second)) >= 6
        assert len(first) != len(second)
        for head in (first, second):
            assert {0, 57, 58, 59} <= head
    assert cache.layer is not None
    keys, values = cache.keys_and_values()
    assert keys.shape == values.shape == (2, 1, 26, 8)
    assert cache.layer.rows.keys.shape[2] <= 26 + 256
    assert cache.tokens_kept == 12
    kept = np.array(cache.layer.rows.columns["head"])[..., None]
    where = np.array(cache.position)[..., None]
    offered = np.take_along_axis(np.array(tokens.keys), where.repeat(2, 1), axis=2)
    assert np.array_equal(np.array(keys), np.take_along_axis(offered, kept.repeat(8, 3), axis=1))


def test_sequences_of_a_batch_do_not_see_each_other(stream: Feed, feed: Feed) -> None:
    tokens = stream(40, batch=3)
    lengths = [11, 9, *[1] * 20]
    together = EvictingCache(Method(accumulated(), 10, 1, 2, floor=0.2), MODEL)
    feed(together, tokens, lengths)
    for row in range(3):
        alone = EvictingCache(Method(accumulated(), 10, 1, 2, floor=0.2), MODEL)
        feed(alone, type(tokens)(*(array[row : row + 1] for array in tokens)), lengths)
        assert pooled(alone) == [pooled(together)[row]]


def test_in_a_batch_a_query_sees_its_own_sequence_and_padding_something(stream: Feed, feed: Feed) -> None:
    tokens = stream(40, batch=2)
    method = Method(accumulated(), 9, 1, 2, floor=0.0)
    caches = [EvictingCache(method, MODEL) for _ in range(2)]
    feed(caches[0], type(tokens)(*(array[:1] for array in tokens)), [20, 1, 1])
    batch = caches[0].merge(caches)
    batch.prepare(lengths=[3, 0], right_padding=[0, 3])
    now = [array[..., 22:25, :] for array in tokens]
    keys, _ = batch.update_and_fetch(*now[1:])
    ((first, last, mask),) = batch.masks(None, 4, 3)
    assert (first, last, mask.shape) == (0, 3, (2, 4, 3, keys.shape[2]))
    assert mx.all(mx.any(mask, axis=-1)).item()  # a query that sees nothing would be NaN
    assert mask[0].sum(axis=-1).sum(axis=0).tolist() == [2 * 2 * (9 + n) for n in (1, 2, 3)]


def test_heads_that_share_a_budget_over_processes_have_no_batches() -> None:
    cache = EvictingCache(Method(LATEST, 10, 1, floor=0.2), MODEL, across=Processes(None))
    with pytest.raises(AttributeError, match="no batches, since processes share the heads of a layer"):
        _ = cache.merge


@pytest.mark.parametrize("length", [1, 5])
def test_a_query_sees_its_own_heads_rows_up_to_its_own_position(
    length: int, stream: Feed, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vqx.state.lanes.TILE", 200)
    tokens = stream(40, batch=2, heads=2, group=3)
    cache = EvictingCache(Method(accumulated(), 9, 1, 2, floor=0.0), MODEL)
    feed(cache, tokens, [20, *[1] * 4, length])
    assert cache.layer is not None
    keys, values = (np.array(array[:, 0]) for array in cache.keys_and_values())
    position, head = np.array(cache.position[:, 0]), np.array(cache.layer.rows.columns["head"][:, 0])
    queries = np.array(tokens.queries[:, :, 24 : 24 + length])
    tiles = cache.masks("causal", 6, length)
    assert (len(tiles) > 1) == (length > 1)
    for first, last, mask in tiles:
        read = mx.fast.scaled_dot_product_attention(
            mx.array(queries[:, :, first:last]), *cache.keys_and_values(), scale=0.5, mask=mask
        )
        for b, h, s in np.ndindex(2, 6, last - first):
            mine = (head[b] == h // 3) & (position[b] <= 24 + first + s)
            logits = keys[b, mine] @ queries[b, h, first + s] * 0.5
            weights = np.exp(logits - logits.max())
            right = weights @ values[b, mine] / weights.sum()
            np.testing.assert_allclose(np.array(read[b, h, s]), right, rtol=2e-4, atol=1e-5)


def logits(model: nn.Module, caches: list[Any], tokens: mx.array, lengths: list[int]) -> mx.array:
    parts, start = [], 0
    for length in lengths:
        parts.append(model(tokens[:, start : start + length], cache=caches))
        mx.eval(parts[-1], [cache.state for cache in caches])
        start += length
    return mx.concatenate(parts, axis=1)


def test_a_model_reads_as_with_heads_apart_where_each_keeps_its_budget(
    tiny_llama: Callable[..., nn.Module],
) -> None:
    model = tiny_llama()
    watch_attention(model)
    tokens = mx.random.randint(0, 97, (2, 60), key=mx.random.key(1))
    lengths = [20, 13, *[1] * 27]
    full, apart, together = (
        logits(
            model,
            [EvictingCache(Method(accumulated(), budget, 1, 4, floor=floor), MODEL) for _ in model.layers],
            tokens,
            lengths,
        )
        for budget, floor in ((99, 0.2), (12, None), (12, 1.0))
    )
    # before the first eviction nothing differs by a bit
    assert mx.array_equal(full[:, :20], together[:, :20])
    assert mx.array_equal(apart[:, :20], together[:, :20])
    assert mx.allclose(apart, together, rtol=1e-3, atol=1e-4)
    assert not mx.allclose(full[:, 40:], together[:, 40:], rtol=1e-1, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queries": "keys"}, "queries='keys': heads that share a budget need queries='model'"),
        ({"queries": "model", "cadence": "token"}, "need cadence='block'"),
    ],
)
def test_what_heads_cannot_share_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EvictingCache(Method(accumulated(), 12, floor=0.2), Options(**options))


def test_merging_is_refused() -> None:
    with pytest.raises(ValueError, match="this method merges values"):
        EvictingCache(Method(accumulated(), 12, floor=0.2, merge=lambda held, gone: held.values), MODEL)


def test_a_score_of_keys_is_refused_at_the_first_cut(stream: Feed, feed: Feed) -> None:
    def norms(held: Held) -> Any:
        return -(held.keys**2).sum(axis=-1)

    cache = EvictingCache(Method(Scorer(score=norms, window=1), 12, floor=0.2), MODEL)
    with pytest.raises(ValueError, match="this method reads keys or values head by head"):
        feed(cache, stream(20), [13, 1])


def test_one_set_of_rows_for_all_heads_is_refused(stream: Feed, feed: Feed) -> None:
    scorer = LATEST._replace(score=lambda held: held.over_heads(LATEST.score(held)))
    cache = EvictingCache(Method(scorer, 12, floor=0.2), MODEL)
    with pytest.raises(ValueError, match="keep rows of their own, and this method keeps one set"):
        feed(cache, stream(20), [13, 1])


def test_a_mask_of_the_models_own_is_refused(stream: Feed) -> None:
    tokens = stream(8)
    cache = EvictingCache(Method(accumulated(), 12, floor=0.2), MODEL)
    keys, _ = cache.update_and_fetch(tokens.keys, tokens.values)
    cache.observe(tokens.queries, keys, 0.5, mx.tri(8, dtype=mx.bool_), None)
    with pytest.raises(ValueError, match="masks its rows by itself"):
        cache.update_and_fetch(tokens.keys, tokens.values)
