"""Tokens that are taken back leave no trace, and several at once read as one by one."""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
import vqx
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import (
    KVCache,
    can_trim_prompt_cache,
    load_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from vqx.state.reversible import ReversibleCache

pytestmark = pytest.mark.usefixtures("toys")

Models = Callable[..., nn.Module]
WAYS: Sequence[Mapping[str, Any]] = (
    {"method": "toy"},
    {"method": "toy-newest"},
    {"method": "toy", "queries": "centred-keys"},
    {"method": "toy", "interval": 3},
    {"method": "toy", "prompt": "whole"},
)
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(map(str, way.values())))
TOKENS = mx.random.randint(0, 97, (2, 90), key=mx.random.key(4))


def feed(model: nn.Module, caches: list[Any], lengths: Sequence[int], tokens: mx.array = TOKENS) -> mx.array:
    start = caches[0].offset
    cuts, logits = [start + sum(lengths[:n]) for n in range(len(lengths) + 1)], []
    for first, last in pairwise(cuts):
        logits.append(model(tokens[:, first:last], cache=caches))
        mx.eval(logits[-1], [cache.state for cache in caches])
    return mx.concatenate(logits, axis=1)


def alike(one: ReversibleCache, other: ReversibleCache) -> bool:
    """Whether the methods know the same, once they looked at all that they may: rows and statistics."""
    known = []
    for cache in (one, other):
        due = cache._due(cache.tokens_seen)
        cache._look(due)
        layer = cache.policy.layer
        known.append([] if layer is None else layer.carried)
    return all(mx.allclose(a, b, rtol=1e-4, atol=1e-5).item() for a, b in zip(*known, strict=True))


@ways
def test_several_tokens_read_as_one_by_one(way: Mapping[str, Any], tiny_llama: Models) -> None:
    model = tiny_llama()
    caches = vqx.make_cache(model, budget=12, undo=4, **way)
    feed(model, caches, [20])
    twins = copy.deepcopy(caches)
    one_by_one = feed(model, caches, [1] * 40)
    together = feed(model, twins, [3, 5, 1, 5, 5, 2, 1, 4, 5, 5, 4])
    # attention over rows that are masked is not the same sum as without them
    assert mx.allclose(one_by_one, together, rtol=0, atol=2e-5).item()
    assert all(map(alike, caches, twins))
    assert {cache.policy.tokens_seen for cache in caches} == {56}
    assert {cache.policy.tokens_kept for cache in caches} <= {12, 13, 14}


@ways
@pytest.mark.parametrize(
    ("before", "after", "back"),
    [
        ([20, *[1] * 9], [1, 1, 1, 1], 4),
        ([20, *[1] * 9], [5], 4),
        ([20, *[1] * 9], [2, 1, 3], 4),
        ([20], [5], 4),
        ([3], [2, 5], 5),
        ([3], [2, 5, 1], 4),
        ([20, 1, 1, 1, 1], [7, 1, 1], 2),
    ],
    ids=str,
)
def test_what_was_taken_back_leaves_no_trace(
    before: list[int], after: list[int], back: int, way: Mapping[str, Any], tiny_llama: Models
) -> None:
    model = tiny_llama()
    caches, never = (vqx.make_cache(model, budget=12, undo=4, **way) for _ in range(2))
    feed(model, caches, [*before, *after])
    kept = [*after]
    dropped = back
    while dropped:
        taken = min(dropped, kept[-1])
        kept[-1] -= taken
        dropped -= taken
        if not kept[-1]:
            kept.pop()
    feed(model, never, [*before, *kept])
    assert can_trim_prompt_cache(caches)
    assert trim_prompt_cache(caches, back) == back
    assert [c.offset for c in caches] == [c.offset for c in never]
    assert [c.tokens_kept for c in caches] == [c.tokens_kept for c in never]
    later = mx.random.randint(0, 97, (2, 90), key=mx.random.key(5))
    for lengths in ([1, 1, 3], [9, 1, 1]):
        found, expected = (feed(model, each, lengths, later) for each in (caches, never))
        # forwards of other lengths add up in another order
        assert mx.allclose(found, expected, rtol=0, atol=2e-5).item()
        assert all(map(alike, caches, never))


def test_rows_held_are_counted_before_they_are_read(tiny_llama: Models) -> None:
    model = tiny_llama()
    caches = vqx.make_cache(model, "toy", budget=12, undo=4)
    for length in (1, 3, 1, 20, 1, 1, 5, 1, 2, 1, 9, 1):
        kept = [cache.tokens_kept for cache in caches]
        feed(model, caches, [length])
        assert [cache.size() for cache in caches] == [rows + length for rows in kept]
        keys, _ = caches[0].keys_and_values()
        assert keys.shape[2] == caches[0].position.shape[2] == caches[0].size()
    feed(model, caches, [1] * 20)
    assert {cache.tokens_kept for cache in caches} == {12 + 1 + 4}


@ways
def test_speculative_decoding_gives_plain_greedys_tokens(way: Mapping[str, Any], tiny_llama: Models) -> None:
    model, prompt = tiny_llama(), TOKENS[0, :10]
    accepted = rejected = 0
    for draft in (tiny_llama(), tiny_llama(seed=1)):
        caches = vqx.make_cache(model, budget=16, undo=3, **way)
        steps = generate_step(prompt, model, max_tokens=24, prompt_cache=caches)
        plain = [int(token) for token, _ in steps]
        caches = vqx.make_cache(model, budget=16, undo=3, **way)
        both = [*caches, *(KVCache() for _ in draft.layers)]
        found = [
            (int(token), drafted)
            for token, _, drafted in speculative_generate_step(
                prompt, model, draft, num_draft_tokens=3, max_tokens=24, prompt_cache=both
            )
        ]
        assert [token for token, _ in found] == plain
        accepted += sum(drafted for _, drafted in found)
        rejected += sum(not drafted for _, drafted in found)
        assert all(cache.policy.tokens_kept < cache.policy.tokens_seen for cache in caches)
    assert accepted > 3
    assert rejected > 3


@ways
def test_what_may_come_back_costs_a_few_rows_and_no_copies_of_the_cache(
    way: Mapping[str, Any], tiny_llama: Models
) -> None:
    model, undo = tiny_llama(), 4
    for lengths in ([20, *[1] * 40], [20, *[undo + 1] * 8]):
        caches, plain = (vqx.make_cache(model, budget=64, undo=each, **way) for each in (undo, 0))
        for each in (caches, plain):
            feed(model, each, [*lengths, *[1] * 20])
        for cache, single in zip(caches, plain, strict=True):
            row = single.kept_bytes // single.tokens_kept  # a token's queries take no more
            held = (undo + 1) * 5 * row + undo * single.bookkeeping_bytes
            assert cache.nbytes - single.nbytes <= held < single.nbytes
            assert cache.tokens_kept < cache.tokens_seen


def test_more_than_can_be_taken_back_is_refused_and_changes_nothing(tiny_llama: Models) -> None:
    model = tiny_llama()
    caches = vqx.make_cache(model, "toy", budget=12, undo=4)
    feed(model, caches, [20, *[1] * 12])
    twins = copy.deepcopy(caches)
    with pytest.raises(ValueError, match="cannot take back 20 tokens: with undo=4, 4 can"):
        trim_prompt_cache(caches, 20)
    assert trim_prompt_cache(caches, 0) == 0
    assert mx.array_equal(feed(model, caches, [2, 1]), feed(model, twins, [2, 1])).item()


def test_fewer_tokens_than_are_drafted_are_refused_by_the_first_that_is_rejected(tiny_llama: Models) -> None:
    model, draft = tiny_llama(), tiny_llama(seed=1)
    caches = [*vqx.make_cache(model, "toy", budget=16, undo=2), *(KVCache() for _ in draft.layers)]
    steps = speculative_generate_step(TOKENS[0], model, draft, num_draft_tokens=3, prompt_cache=caches)
    with pytest.raises(ValueError, match=r"none of a forward of more than 3; give undo the number"):
        list(steps)


def test_what_cannot_take_tokens_back_is_refused(tiny_llama: Models, tmp_path: Any) -> None:
    model = tiny_llama()
    for engine in ({"cadence": "token"}, {"positions": "compact"}):
        with pytest.raises(ValueError, match="undo=2 with"):
            vqx.make_cache(model, "toy", budget=12, undo=2, **engine)
    merging = vqx.Method(vqx.accumulated(), 12, merge=lambda held, gone: held.values)
    with pytest.raises(AttributeError, match="layer 0: no batches, since undo=2 is for drafts"):
        _ = vqx.make_cache(model, "toy", budget=12, undo=2)[0].merge
    with pytest.raises(ValueError, match="undo=2: a method that merges"):
        ReversibleCache(vqx.EvictingCache(merging, vqx.Options(queries="model")), 2)
    caches, file = vqx.make_cache(model, "toy", budget=12, undo=2), str(tmp_path / "cache.safetensors")
    feed(model, caches, [20])
    with pytest.raises(ValueError, match="not saved: make them with undo=0"):
        vqx.save_cache(file, caches)
    save_prompt_cache(file, caches)
    with pytest.raises(ValueError, match="not saved: make them with undo=0"):
        load_prompt_cache(file)


def test_models_that_mask_in_their_own_way_are_refused() -> None:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 97,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
    }
    for kind, message in (("gemma2", "computes attention by itself"), ("gemma3_text", "a RotatingKVCache")):
        module = importlib.import_module(f"mlx_lm.models.{kind}")
        model = module.Model(module.ModelArgs.from_dict({"model_type": kind, **sizes}))
        with pytest.raises(ValueError, match=message):
            vqx.make_cache(model, "toy", budget=12, undo=2)
