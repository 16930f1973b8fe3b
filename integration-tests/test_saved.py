"""Prompt caches in files, for methods that hold different things beside their rows."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from tiny_models.build import tiny_model

METHODS: Mapping[str, Mapping[str, Any]] = {
    "fusion": {},  # attention over the number of sightings
    "keyformer": {},  # noise that is frozen by position
    "tova": {"question": "end"},  # the latest query
    "expected-attention": {},  # notes of all queries, the rotary embedding
    "cam(h2o)": {"n_sink": 2},  # values that change
    "ada(snapkv)": {"window": 4},  # heads that share one lane
    "squeezeattention(h2o)": {"percent": 0.7},  # layers that decide together
    "protect": {"spans": ((6, 9),)},  # ranges, which a file holds as lists
}


@pytest.mark.parametrize("read", [8, 30], ids=["before", "after"])
@pytest.mark.parametrize("method", METHODS)
def test_a_saved_cache_evicts_on_as_the_one_before(method: str, read: int, tiny: Any, tmp_path: Path) -> None:
    file, options = str(tmp_path / "cache.safetensors"), METHODS[method]
    caches = vqx.make_cache(tiny.model, method, budget=16, **options)
    tokens = mx.random.randint(0, 97, (1, read + 24), key=mx.random.key(read))
    tiny.read(caches, tokens[:, : read + 2], [read, 1, 1])
    vqx.save_cache(file, caches)
    later, lengths = tokens[:, read + 2 :], [1, 1, 12, *[1] * 8]
    lists = [caches, copy.deepcopy(caches), vqx.load_cache(file, tiny.model), load_prompt_cache(file)]
    found = [tiny.read(each, later, lengths) for each in lists]
    assert all(mx.array_equal(found[0], other).item() for other in found[1:])
    for cache, *others in zip(*lists, strict=True):
        assert cache.tokens_kept < cache.tokens_seen == read + 25 - 1
        assert all(type(other) is type(cache) is vqx.EvictingCache for other in others)
        assert {other.tokens_kept for other in others} == {cache.tokens_kept}
        assert all(mx.array_equal(cache.position, other.position).item() for other in others)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "qwen3_next", "deepseek_v3", "cohere2"])
def test_caches_of_other_kinds_come_back_beside_ours(kind: str, tmp_path: Path) -> None:
    model, file = tiny_model(kind), str(tmp_path / "cache.safetensors")
    caches = vqx.make_cache(model, "tova", budget=16)
    tokens = mx.random.randint(0, 60, (1, 40), key=mx.random.key(1))
    model(tokens[:, :30], cache=caches)
    save_prompt_cache(file, caches)
    back = vqx.load_cache(file, model)
    assert list(map(type, back)) == list(map(type, caches))
    for at in range(30, 40):
        one, other = (model(tokens[:, at : at + 1], cache=each) for each in (caches, back))
        assert mx.array_equal(one, other).item()
    with pytest.raises(ValueError, match="another model"):
        vqx.load_cache(file, tiny_model("llama"))
