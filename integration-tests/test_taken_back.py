"""Speculative decoding and trims on caches that evict, for methods that remember different things."""

from collections.abc import Mapping
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

BUDGET, DRAFTED = 24, 3
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fusion": {},  # attention over the number of sightings
    "keyformer": {},  # noise by position, and a temperature by tokens generated
    "tova": {"prompt": "whole"},  # the latest query
    "expected-attention": {},  # notes of all queries, the rotary embedding
    "streaming-llm": {},  # nothing
}


@pytest.mark.parametrize("length", [8, 40], ids=["inside the budget", "across the budget"])
@pytest.mark.parametrize("method", METHODS)
def test_speculative_decoding_gives_plain_greedys_tokens(
    method: str, length: int, tiny: Any, make_llama: Any
) -> None:
    prompt = mx.random.randint(0, 97, (10,), key=mx.random.key(2))
    draft = make_llama(num_hidden_layers=2)

    def fresh() -> list[Any]:
        return vqx.make_cache(tiny.model, method, budget=BUDGET, undo=DRAFTED, **METHODS[method])

    caches = fresh()
    plain = [int(t) for t, _ in generate_step(prompt, tiny.model, max_tokens=length, prompt_cache=caches)]
    steps = speculative_generate_step(
        prompt,
        tiny.model,
        draft,
        num_draft_tokens=DRAFTED,
        max_tokens=length,
        prompt_cache=[*fresh(), *vqx.make_cache(draft, method, budget=BUDGET, undo=DRAFTED)],
    )
    assert [int(token) for token, *_ in steps] == plain
    assert all((cache.tokens_kept < cache.tokens_seen) == (length > BUDGET) for cache in caches)


@pytest.mark.parametrize("method", METHODS)
def test_a_trim_after_an_eviction_is_as_if_never_fed(method: str, tiny: Any) -> None:
    tokens = mx.random.randint(0, 97, (1, 60), key=mx.random.key(3))
    caches, never = (
        vqx.make_cache(tiny.model, method, budget=BUDGET, undo=5, **METHODS[method]) for _ in range(2)
    )
    tiny.read(caches, tokens, [1] * 55)
    tiny.read(never, tokens, [1] * 50)
    assert can_trim_prompt_cache(caches)
    assert trim_prompt_cache(caches, 5) == 5
    assert all(cache.tokens_kept < cache.tokens_seen == 50 for cache in caches)
    found, expected = (tiny.read(each, tokens[:, 55:], [1, 3, 1]) for each in (caches, never))
    assert mx.array_equal(found, expected).item()


@pytest.mark.parametrize("method", ["cam(h2o)", "ada(snapkv)", "squeezeattention(h2o)"])
def test_methods_that_share_or_merge_are_refused(method: str, tiny: Any) -> None:
    with pytest.raises(ValueError, match="undo=3: a method that merges values, or shares rows"):
        vqx.make_cache(tiny.model, method, budget=64, undo=3)


@pytest.mark.parametrize("method", METHODS)
def test_without_undo_nothing_is_taken_back_and_nothing_moves(method: str, tiny: Any) -> None:
    caches = vqx.make_cache(tiny.model, method, budget=BUDGET, **METHODS[method])
    tiny.read(caches, mx.random.randint(0, 97, (1, 9), key=mx.random.key(3)), [9])
    assert not can_trim_prompt_cache(caches)
    assert trim_prompt_cache(caches, 5) == 0
    with pytest.raises(ValueError, match=r"cannot take back 5 tokens.*undo"):
        caches[0].trim(5)
    assert {cache.tokens_seen for cache in caches} == {9}
