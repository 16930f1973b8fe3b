"""A prompt of many times the budget is held in the budget's memory."""

from collections.abc import Mapping
from typing import Any

import vqx  # noqa: F401  # isort: skip  # before mlx

import mlx.core as mx
import mlx_lm
from subjects import caches_of, check_full, representative

BUDGET = 256


@representative
def test_a_prompt_of_3200_tokens_ends_in_the_memory_of_its_budget(
    method: str, shallow: Any, texts: Mapping[str, list[int]]
) -> None:
    """Two layers of the embedded model; mlx-lm reads in chunks of 2,048, whose rows must be given back."""
    prompt = (texts["narrative"] + texts["manual"])[:3200]
    mx.clear_cache()
    before = mx.get_active_memory()
    caches = caches_of(shallow.model, method, budget=BUDGET)
    mlx_lm.generate(shallow.model, shallow.tokenizer, prompt, max_tokens=4, prompt_cache=caches)
    held, kept = (sum(getattr(cache, name) for cache in caches) for name in ("nbytes", "kept_bytes"))
    check_full(caches, BUDGET)
    assert all(cache.tokens_seen >= 3200 for cache in caches)
    # what is known of all queries is a third more, at these sizes, and does not grow
    assert held < 1.5 * kept
    # beside the caches a token's logits, 200 kB, may still be held
    assert mx.get_active_memory() - before < 1.5 * held + 2**19
