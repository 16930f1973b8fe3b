"""The cache that mlx-lm sees: nothing is evicted inside a forward, and every count is true."""

import copy
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache
from vqx import EvictingCache, Held, Method, Options, Scorer, accumulated, make_cache
from vqx.state.positions import rotary_of

Feed = Callable[..., Any]
FORWARDS = (7, 1, 1, 30, 1, 5, 1, 1)


def mass(budget: int = 12, **engine: Any) -> EvictingCache:
    method = Method(accumulated(), budget, n_sink=2, recent=3)
    return EvictingCache(method, Options(**{"queries": "model", **engine}))


def windowed(budget: int = 12, **engine: Any) -> EvictingCache:
    def score(held: Held) -> Any:
        return held.last.weights().mean(axis=2).mean(axis=2)

    method = Method(Scorer(score=score, window=4), budget, n_sink=2, recent=3)
    return EvictingCache(method, Options(**{"queries": "model", **engine}))


@pytest.mark.parametrize("engine", [{}, {"cadence": "token"}, {"interval": 3}, {"prompt": "whole"}], ids=str)
@pytest.mark.parametrize("make", [mass, windowed])
def test_nothing_is_evicted_inside_a_forward(
    make: Callable[..., EvictingCache], engine: Mapping[str, Any], stream: Feed, feed: Feed
) -> None:
    cache, tokens = make(**engine), stream(sum(FORWARDS), batch=2)
    for length in FORWARDS:
        seen, remain = cache.tokens_seen, cache.tokens_kept
        (read,) = feed(cache, tokens, [length])
        assert read.keys.shape[2] == read.values.shape[2] == remain + length == cache.size()
        new = np.arange(seen, seen + length)
        position = np.array(read.position)
        assert all(np.isin(new, lane).all() for lane in position.reshape(-1, remain + length))
        if length > 1:  # a causal mask is aligned to the last row: what was kept stands before what is new
            assert (position[..., remain:] == new).all()
            assert (position[..., :remain] < seen).all()
        later = cache.keys_and_values()  # a layer that shares the cache
        assert mx.array_equal(later[0], read.keys).item()
        assert mx.array_equal(later[1], read.values).item()
        at = np.array(read.position)  # every row is the token that its position names
        np.testing.assert_array_equal(np.array(read.values[..., 0]), at)
        own = np.take_along_axis(np.array(tokens.keys), at[..., None], axis=2)
        np.testing.assert_array_equal(np.array(read.keys), own)
    assert cache.tokens_kept < cache.tokens_seen == cache.offset == sum(FORWARDS)


@pytest.mark.parametrize("engine", [{}, {"cadence": "token"}, {"interval": 3}], ids=str)
@pytest.mark.parametrize("make", [mass, windowed])
def test_sinks_and_recent_rows_are_seen_by_every_later_query(
    make: Callable[..., EvictingCache], engine: Mapping[str, Any], stream: Feed, feed: Feed
) -> None:
    cache, tokens = make(**engine), stream(120)
    for length in (40, *[1] * 20, 10, 40, 2, *[1] * 6):
        seen = cache.tokens_seen
        (read,) = feed(cache, tokens, [length])
        for lane in np.array(read.position).reshape(-1, read.keys.shape[2]).tolist():
            assert {0, 1} <= set(lane)
            assert {*range(max(0, seen - 3), seen)} <= set(lane)
            assert len(set(lane)) == len(lane)
    assert cache.tokens_kept == 12


def test_evicted_rows_never_return(stream: Feed, feed: Feed) -> None:
    cache, tokens = mass(), stream(80)
    reads = [
        set(read.position[0, 0].tolist()) for read in feed(cache, tokens, [20, *[1] * 30, 10, *[1] * 20])
    ]
    for before, after in pairwise(reads):
        gone = before - after
        assert not any(gone & later for later in reads[reads.index(after) :])


def test_a_whole_prompt_is_read_before_the_first_cut(stream: Feed, feed: Feed) -> None:
    cache, tokens = mass(prompt="whole"), stream(40)
    sizes = [read.keys.shape[2] for read in feed(cache, tokens, [10, 10, 10, 1, 1, 1])]
    assert sizes == [10, 20, 30, 31, 13, 13]
    assert cache.tokens_kept == 12


def test_with_an_interval_rows_are_cut_once_in_so_many_tokens(stream: Feed, feed: Feed) -> None:
    cache, tokens = mass(interval=4), stream(60)
    sizes = [read.keys.shape[2] for read in feed(cache, tokens, [1] * 30)]
    assert sizes[:16] == list(range(1, 17))
    assert sizes[16:] == [13, 14, 15, 16] * 3 + [13, 14]
    assert cache.layer is not None
    assert cache.layer.rows.keys.shape[2] == 16
    assert [read.keys.shape[2] for read in feed(cache, tokens, [9, 1, 1])] == [23, 13, 14]


@pytest.mark.parametrize("tokens", [11, 12, 13])
@pytest.mark.parametrize("cut", ["at once", "one by one"])
def test_up_to_the_budget_every_row_is_read(tokens: int, cut: str, stream: Feed, feed: Feed) -> None:
    cache, rows = mass(), stream(14)
    feed(cache, rows, [tokens] if cut == "at once" else [1] * tokens)
    (read,) = feed(cache, rows, [1])
    assert read.keys.shape[2] == min(tokens, 12) + 1


def test_queries_that_were_not_shown_are_missed_at_the_next_update(stream: Feed) -> None:
    cache, rows = mass(), stream(10)
    rows = rows.keys[..., :4, :], rows.values[..., :4, :]
    cache.number = 3
    cache.update_and_fetch(*rows)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"layer 3.*attention by itself.*queries='centred-keys'"):
            cache.update_and_fetch(*rows)
    assert cache.tokens_seen == cache.size() == 4
    assert mx.array_equal(cache.keys_and_values()[0], rows[0]).item()


def test_a_layer_that_shares_the_cache_is_not_counted_twice(stream: Feed, feed: Feed) -> None:
    cache, once, tokens = mass(), mass(), stream(20)
    for length in (8, 1, 5, 1, 1):
        queries = tokens.queries[..., cache.offset : cache.offset + length, :]
        (read,) = feed(cache, tokens, [length])
        feed(once, tokens, [length])
        cache.observe(queries * 3, read.keys, 1.0, "causal", None)
    assert cache.layer
    assert once.layer
    assert mx.array_equal(cache.layer.rows.columns["mass"], once.layer.rows.columns["mass"]).item()


@pytest.mark.parametrize("queries", ["model", "keys"])
def test_nan_in_a_chunk_is_refused_at_the_next_call(queries: str, stream: Feed, feed: Feed) -> None:
    cache, tokens = mass(queries=queries), stream(10)
    tokens.keys[0, 1, 2, 3] = mx.nan
    feed(cache, tokens, [5])
    for _ in range(2):
        with pytest.raises(ValueError, match="layer 0: keys of the last 5 tokens hold NaN"):
            feed(cache, tokens, [1])
    assert cache.tokens_seen == 5


@pytest.mark.parametrize("change", [{"batch": 2}, {"heads": 3, "group": 1}, {"width": 4}], ids=str)
def test_rows_of_another_shape_are_refused(change: Mapping[str, int], stream: Feed, feed: Feed) -> None:
    cache = mass()
    feed(cache, stream(5), [5])
    with pytest.raises(ValueError, match=r"do not fit the rows held.*fresh cache"):
        feed(cache, stream(6, **change), [1])
    feed(cache, stream(6), [1])
    assert cache.tokens_seen == 6


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("apart", [True, False], ids=["keys of four heads", "numbers added"])
def test_the_latest_queries_keep_the_logits_they_had_where_attention_makes_its_keys_from_the_rows(
    apart: bool, interval: int, stream: Feed
) -> None:
    """Latent attention: one head is held, and four read it, by keys made anew or by numbers of their own."""
    read: list[np.ndarray[Any, Any]] = []

    def score(held: Held) -> Any:
        assert held.last is not None
        read.append(np.array(held.last.weights()))
        return held.last.weights().sum(axis=3).mean(axis=2)

    method = Method(Scorer(score=score, window=4), 12, n_sink=2, recent=3)
    cache = EvictingCache(method, Options(queries="model", interval=interval))
    tokens = stream(45, heads=1, group=4)
    made = np.random.default_rng(1).normal(size=(4, 8, 8)).astype(np.float32)  # a head's keys from its row
    logits = np.einsum("bhsd,hde,bgne->bhsn", np.array(tokens.queries), made, np.array(tokens.keys))
    for length in (5, 11, *[1] * 6, 2, 9, *[1] * 12):
        start = cache.tokens_seen
        now = slice(start, start + length)
        keys, _ = cache.update_and_fetch(tokens.keys[..., now, :], tokens.values[..., now, :])
        at, queries = np.array(cache.position)[0, 0], tokens.queries[..., now, :]
        seen = at <= np.arange(start, start + length)[:, None]
        if apart:
            keys = mx.array(np.einsum("hde,bgne->bhnd", made, np.array(keys)))
            mask = mx.array(seen)
        else:
            keys, queries = keys * 0, queries * 0
            mask = mx.array(np.where(seen, logits[:, :, now][..., at], np.finfo(np.float32).min))
        before = len(read)
        cache.observe(queries, keys, 1.0, mask, None)
        copy.deepcopy(cache).update_and_fetch(tokens.keys[..., :1, :], tokens.values[..., :1, :])
        if len(read) > before:
            newest = start + length - 1
            latest = np.arange(max(newest - 3, 0), newest + 1)
            wide = np.where(at <= latest[:, None], logits[0][:, latest][..., at].astype(np.float64), -np.inf)
            powers = np.exp(wide - wide.max(-1, keepdims=True))
            np.testing.assert_allclose(read[-1][0, 0], powers / powers.sum(-1, keepdims=True), atol=1e-5)
    assert len(read) > 8
    assert cache.tokens_kept <= 12 + interval - 1 < cache.tokens_seen


@pytest.mark.parametrize("kind", ["token cadence", "tiled keys", "notes"])
def test_keys_that_attention_makes_are_refused_where_they_cannot_be_followed(kind: str, stream: Feed) -> None:
    tokens = stream(6, heads=2 if kind == "tiled keys" else 1, group=2)
    cache = mass(cadence="token") if kind == "token cadence" else mass()
    if kind == "notes":
        note = Scorer(score=lambda held: held.position, note=lambda notes, queries, start: notes, rotary=True)
        rotary = rotary_of(lambda x, offset: x, 8)
        cache = EvictingCache(Method(note, 12), Options(queries="model"), rotary=rotary)
    keys, _ = cache.update_and_fetch(tokens.keys[..., :5, :], tokens.values[..., :5, :])
    keys = mx.concatenate([keys, keys], axis=1)
    cache.observe(tokens.queries[..., :5, :], keys, 1.0, "causal", None)
    with pytest.raises(ValueError, match=r"not seen, since it .* the .* held.*queries='centred-keys'"):
        cache.update_and_fetch(tokens.keys[..., 5:, :], tokens.values[..., 5:, :])


def test_values_that_attention_makes_are_never_merged(stream: Feed) -> None:
    tokens = stream(5, heads=1, group=2)
    method = mass().plan.method._replace(merge=lambda held, gone: held.read()[1])
    cache = EvictingCache(method, Options(queries="centred-keys"))
    keys, _ = cache.update_and_fetch(tokens.keys, tokens.values)
    with pytest.raises(ValueError, match=r"layer 0: .* cannot be merged"):
        cache.observe(tokens.queries, mx.concatenate([keys, keys], axis=1), 1.0, "causal", None)


def test_numbers_that_come_and_go_are_refused(stream: Feed, feed: Feed) -> None:
    cache, tokens = windowed(), stream(6)
    feed(cache, tokens, [5])
    keys, _ = cache.update_and_fetch(tokens.keys[..., 5:, :], tokens.values[..., 5:, :])
    with pytest.raises(ValueError, match="in some forwards only"):
        cache.observe(tokens.queries[..., 5:, :], keys, 1.0, mx.zeros((1, 6)), None)


def test_it_is_not_trimmable_and_says_so(stream: Feed, feed: Feed) -> None:
    from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

    cache = mass()
    feed(cache, stream(20), [20])
    assert not cache.is_trimmable()
    assert not can_trim_prompt_cache([cache])
    assert trim_prompt_cache([cache], 5) == 0
    with pytest.raises(ValueError, match="cannot take back 5 tokens"):
        cache.trim(5)
    assert cache.tokens_seen == cache.size() == 20


def test_what_would_hand_rows_to_a_cache_that_never_evicts_is_not_offered() -> None:
    assert not isinstance(mass(), KVCache)
    assert not any(hasattr(mass(), name) for name in ("to_quantized", "bits"))


def test_a_fresh_cache_is_empty() -> None:
    cache = mass()
    assert cache.empty()
    assert cache.size() == cache.offset == cache.nbytes == cache.bookkeeping_bytes == 0
    assert cache.kept_bytes == cache.full_seq_bytes == 0
    assert cache.compression_ratio == 1.0
    mx.eval(cache.state)
    with pytest.raises(ValueError, match="empty"):
        cache.keys_and_values()
    assert cache.make_mask(1) is None
    assert cache.make_mask(3) == "causal"


def arrays_in(thing: Any) -> list[mx.array]:
    """Every array that an object holds, however deep."""
    if isinstance(thing, mx.array):
        return [thing]
    if isinstance(thing, Mapping):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        return [array for part in thing for array in arrays_in(part)]
    return arrays_in(vars(thing)) if isinstance(thing, EvictingCache) else []


@pytest.mark.parametrize("engine", [{}, {"cadence": "token"}, {"queries": "centred-keys"}], ids=str)
@pytest.mark.parametrize("make", [mass, windowed])
def test_state_lists_every_array_held_and_nbytes_weighs_them(
    make: Callable[..., EvictingCache], engine: Mapping[str, Any], stream: Feed, feed: Feed
) -> None:
    cache, tokens = make(**engine), stream(60)
    for length in (20, 1, 1, 7):
        feed(cache, tokens, [length], sinks=mx.zeros(4))
        held = {id(array): array for array in arrays_in(cache)}
        assert {id(array) for array in cache.state} == set(held)
        assert cache.nbytes == sum(array.nbytes for array in held.values())


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_bytes_follow_from_shapes_and_dtype(dtype: mx.Dtype, stream: Feed, feed: Feed) -> None:
    cache, tokens = mass(), stream(100, batch=2, heads=3, width=8, dtype=dtype)
    read = feed(cache, tokens, [50, 1, 1])[-1]
    assert read.keys.dtype == read.values.dtype == dtype
    row = 2 * 3 * (8 + 8) * dtype.size
    assert (cache.tokens_seen, cache.tokens_kept, cache.size()) == (52, 12, 13)
    assert cache.kept_bytes == 12 * row
    assert cache.full_seq_bytes == 52 * row
    assert cache.compression_ratio == 52 / 12
    assert cache.layer is not None
    capacity = cache.layer.rows.keys.shape[2]
    assert 13 <= capacity <= 14
    bookkeeping = 2 * 3 * 13 * (4 + 4)  # a position and a mass for every row
    assert cache.bookkeeping_bytes == bookkeeping
    assert cache.nbytes == capacity * row + bookkeeping


def test_the_same_numbers_in_another_dtype_keep_the_same_rows(stream: Feed, feed: Feed, kept: Feed) -> None:
    tokens = stream(60, dtype=mx.bfloat16)
    found = []
    for dtype in (mx.bfloat16, mx.float32):
        cache = mass()
        feed(cache, type(tokens)(*(a.astype(dtype) for a in tokens)), [30, *[1] * 20])
        found.append(kept(cache)["position"])
    np.testing.assert_array_equal(*found)


def test_evicted_memory_is_given_back(stream: Feed, feed: Feed) -> None:
    tokens = stream(4200, width=64, group=1)
    before = mx.get_active_memory()
    cache = windowed(24)
    for length in (1024, 1024, 1024, 1024, 1, 1, 1):
        feed(cache, tokens, [length])
        assert mx.get_active_memory() - before <= 2 * cache.nbytes + 2**14
    assert cache.nbytes < 2 * 2 * 30 * 64 * 4 * 2


@pytest.mark.parametrize("make", [mass, windowed])
def test_a_deep_copy_continues_alike_and_apart(
    make: Callable[..., EvictingCache], stream: Feed, feed: Feed, kept: Feed
) -> None:
    cache, tokens = make(), stream(60)
    feed(cache, tokens, [20, 1, 1])
    twin = copy.deepcopy(cache)
    for length in (1, 8, 1, 1):
        left, right = feed(cache, tokens, [length]), feed(twin, tokens, [length])
        assert mx.array_equal(left[0].keys, right[0].keys).item()
    feed(twin, tokens, [10, 1])
    assert cache.tokens_seen == 33
    assert twin.tokens_seen == 44
    assert kept(cache)["position"].max() == 32


def test_masks_fit_the_rows_that_attention_will_read(stream: Feed, feed: Feed) -> None:
    cache, tokens = mass(), stream(60)
    for length in (20, 1, 6, 1, 3):
        assert cache.make_mask(length) == (None if length == 1 else "causal")
        mask = cache.make_mask(length, return_array=True)
        (read,) = feed(cache, tokens, [length])
        if length == 1:
            assert mask is None
            continue
        assert mask.shape == (length, read.keys.shape[2])
        order = np.array(read.position)[0, 0]
        np.testing.assert_array_equal(np.array(mask), order <= order[-length:, None])
    with pytest.raises(ValueError, match="sliding window of 8"):
        cache.make_mask(5, window_size=8)


def test_a_single_cache_must_know_where_queries_come_from() -> None:
    with pytest.raises(ValueError, match="queries=None"):
        EvictingCache(Method(accumulated(), 8), Options())
    with pytest.raises(ValueError, match="compact"):
        EvictingCache(Method(accumulated(), 8), Options(queries="keys", positions="compact"))


class Everything(KVCache):
    """A cache that holds every row, and the rows of each forward that an evicting cache read."""

    def __init__(self, read: list[np.ndarray[Any, Any]]) -> None:
        super().__init__()
        self.read = list(read)  # each [B, H, n]

    def mask(self, length: int, group: int) -> mx.array:
        """Booleans ``[B, H * G, S, n]``: the rows that were read, up to each query's own."""
        position, seen = self.read.pop(0), np.arange(self.offset)
        was_read = (position[..., None] == seen).any(axis=2)[:, :, None]
        causal = seen <= np.arange(self.offset - length, self.offset)[:, None]
        return mx.array((was_read & causal).repeat(group, axis=1))


def masked_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Everything,
    scale: float,
    mask: Any,
    sinks: Any = None,
) -> mx.array:
    mask = cache.mask(queries.shape[2], queries.shape[1] // keys.shape[1])
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)


@pytest.mark.parametrize(
    "engine", [{}, {"cadence": "token"}, {"prompt": "whole"}, {"interval": 3}, {"queries": "keys"}], ids=str
)
@pytest.mark.usefixtures("toys")
def test_layers_of_different_budgets_equal_a_full_cache_with_a_mask(
    engine: Mapping[str, Any], tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama(layers=3)
    tokens = mx.random.randint(0, 97, (2, 97), key=mx.random.key(3))
    forwards = [40, 30, 20, *[1] * 7]
    cuts = np.cumsum([0, *forwards])
    caches = make_cache(model, "toy", budget=[24, 9, 50], **engine)
    reads: list[list[np.ndarray[Any, Any]]] = [[], [], []]
    found = []
    for first, last in pairwise(cuts.tolist()):
        found.append(model(tokens[:, first:last], cache=caches))
        for cache, read in zip(caches, reads, strict=True):
            read.append(np.array(cache.position))
    assert [cache.size() for cache in caches] == [25, 10, 51]
    assert all((reads[n][-1][0, 0] != reads[n][-1][0, 1]).any() for n in range(3)), "heads chose alike"

    monkeypatch.setattr(llama, "scaled_dot_product_attention", masked_attention)
    full = [Everything(read) for read in reads]
    for (first, last), logits in zip(pairwise(cuts.tolist()), found, strict=True):
        expected = model(tokens[:, first:last], cache=full)
        # the same sums over the same rows, in another order
        assert mx.max(mx.abs(logits - expected)).item() < 1e-5
