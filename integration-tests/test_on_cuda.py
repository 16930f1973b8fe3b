"""What a user asks for on CUDA ends in no error of ours, with zeros in the place of what kernels give there.

What they give is tried elsewhere (emulated devices); here it is all that Python does around them.
"""

import copy
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from subjects import caches_of, fitted, through
from vqx import Options
from vqx.host.models import random_llama
from vqx.spec import Setting
from vqx_kernels.testing import pretended

BUDGET = 48

ENGINES = {
    "plain": Options(),
    "interval": Options(interval=4),
    "compact": Options(positions="compact"),
    "compact interval": Options(positions="compact", interval=4),
    "whole": Options(prompt="whole"),
    "keys": Options(queries="keys"),
}


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    sizes = {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 97}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    with pretended():
        yield random_llama({**sizes, **heads}, mx.bfloat16)


@through(ENGINES)
def test_prompts_tokens_files_batches_and_plans_end_in_no_error(
    method: str, engine: Options, model: Any, tmp_path: Path
) -> None:
    def made() -> Any:
        return caches_of(model, method, engine, budget=BUDGET)

    caches = made()
    generate(model, caches, 150, 12)
    kept = [cache.tokens_kept for cache in caches]
    assert sum(kept) <= len(kept) * (BUDGET + engine.interval)
    generate(model, copy.deepcopy(caches), 30, 6)
    save_prompt_cache(str(tmp_path / "cache.safetensors"), caches)
    generate(model, load_prompt_cache(str(tmp_path / "cache.safetensors")), 5, 6)
    batch = BatchGenerator(model, completion_batch_size=4)
    for length in (60, 67, 74):
        batch.insert([[*range(length)]], [12], caches=[made()])
    for _ in range(16):
        batch.next()
    shape = {"prompt": 200, "chunk": 64, "tokens": 5}
    options = fitted(method, {**asdict(engine), "budget": BUDGET})
    plan = vqx.plan(model, Setting(method, options), **shape)
    assert plan.cache > plan.weights / 10


def generate(model: Any, caches: Any, length: int, tokens: int) -> None:
    text = mx.arange(length) % 97
    steps = generate_step(text, model, prompt_cache=caches, prefill_step_size=64, max_tokens=tokens)
    assert len([*steps]) == tokens
