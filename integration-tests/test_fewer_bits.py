"""Rows held in fewer bits: evicted as ever, by what attention reads of them."""

import importlib
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from subjects import NATURES, cache_of, caches_of, method, through
from vqx import EvictingCache, Options
from vqx.state.packing import packing_of
from vqx.testing import Shape, forward, stream

SHAPE = Shape(length=64, batch=1, width=64, value_width=64)
ENGINES = {
    "model": Options(queries="model", bits=4),
    "model token": Options(queries="model", cadence="token", bits=4),
    "interval": Options(queries="model", interval=4, bits=4),
}


@through(ENGINES, merging=False)
def test_rows_in_fewer_bits_are_those_of_a_cache_that_was_given_them_rounded(
    method: str, engine: Options
) -> None:
    tokens = stream("gaussian", shape=SHAPE)
    packing = packing_of(4, 64, tokens.keys, tokens.values)
    words = packing.packed(tokens.keys, tokens.values)
    rounded = tokens._replace(**dict(zip(("keys", "values"), packing.unpacked(*words), strict=True)))
    plain = cache_of(method, Options(**{**vars(engine), "bits": None}), SHAPE, budget=16)
    few = EvictingCache(plain.plan.method, engine, rotary=plain.plan.rotary, packing=packing)
    for first, last in ((0, 20), (20, 40), *((at, at + 1) for at in range(40, 64))):
        reads = forward(plain, rounded.cut(first, last)), forward(few, tokens.cut(first, last))
        assert all(mx.array_equal(one, other).item() for one, other in zip(*reads, strict=True))
    assert few.tokens_kept == plain.tokens_kept < few.tokens_seen
    assert mx.array_equal(plain.position, few.position).item()


@method
def test_memory_is_multiplied(method: str, make_llama: Any) -> None:
    model = make_llama(head_dim=64)
    tokens = mx.random.randint(0, 97, (1, 60), key=mx.random.key(1))
    if NATURES[method].merges:
        with pytest.raises(ValueError, match="this method changes values"):
            caches_of(model, method, budget=24, bits=4)
        return
    held = []
    for bits in (None, 8, 4):
        caches = caches_of(model, method, budget=24, bits=bits)
        for at in (slice(0, 59), slice(59, 60)):
            model(tokens[:, at], cache=caches)
            mx.eval([cache.state for cache in caches])
        assert all(cache.plan.packing is None for cache in caches) == (bits is None)
        held.append(sum(cache.kept_bytes for cache in caches))
    dense, eight, four = held
    # a scale and a bias of 32 bits for 64 numbers
    assert (eight / dense, four / dense) == (9 / 32, 5 / 32)


def test_tokens_of_few_bits_stay_near_those_of_all(make_llama: Any) -> None:
    model = make_llama(head_dim=64)
    tokens = mx.random.randint(0, 97, (1, 60), key=mx.random.key(1))
    found = []
    for bits in (None, 8, 4, 2):
        caches = vqx.make_cache(model, "streaming-llm", budget=24, bits=bits)
        model(tokens[:, :50], cache=caches)
        found.append(model(tokens[:, 50:], cache=caches))
    far = [(mx.abs(one - found[0]).max() / mx.abs(found[0]).max()).item() for one in found[1:]]
    assert 0 < far[0] < 0.02
    assert far[0] < far[1] < far[2]


def test_kv_bits_of_mlx_lm_replaces_no_evicting_cache(tiny: Any) -> None:
    generate = importlib.import_module("mlx_lm.generate")
    caches = vqx.make_cache(tiny.model, "h2o", budget=16)
    before = [*caches]
    steps = generate.generate_step(
        mx.arange(40), tiny.model, max_tokens=4, prompt_cache=caches, kv_bits=4, quantized_kv_start=0
    )
    assert len([*steps]) == 4
    assert all(cache is old for cache, old in zip(caches, before, strict=True))
    assert all(cache.tokens_kept == 16 for cache in caches)


def test_a_file_holds_few_bits_and_says_so(make_llama: Any, tmp_path: Path) -> None:
    model, file = make_llama(head_dim=64), tmp_path / "cache.safetensors"
    tokens = mx.random.randint(0, 97, (1, 60), key=mx.random.key(1))
    caches = vqx.make_cache(model, "h2o", budget=16, bits=4)
    model(tokens[:, :40], cache=caches)
    vqx.save_cache(file, caches)
    back = vqx.load_cache(file, model)
    assert [cache.nbytes for cache in back] == [cache.nbytes for cache in caches]
    assert mx.array_equal(model(tokens[:, 40:], cache=caches), model(tokens[:, 40:], cache=back)).item()
    model.set_dtype(mx.float16)
    with pytest.raises(ValueError, match="make it anew"):
        vqx.load_cache(file, model)


def test_a_batch_of_few_bits_keeps_what_each_keeps_alone(make_llama: Any) -> None:
    model = make_llama(head_dim=64)
    tokens = mx.random.randint(0, 97, (2, 60), key=mx.random.key(1))
    alone = [vqx.make_cache(model, "h2o", budget=16, bits=4) for _ in range(2)]
    for number, caches in enumerate(alone):
        model(tokens[number : number + 1, : 30 + 5 * number], cache=caches)
        mx.eval([cache.state for cache in caches])
    together = [type(each[0]).merge.fget(each[0])(each) for each in zip(*alone, strict=True)]
    for at in range(40, 60):
        both = model(tokens[:, at : at + 1], cache=together)
        each = [model(tokens[n : n + 1, at : at + 1], cache=caches) for n, caches in enumerate(alone)]
        assert mx.allclose(both, mx.concatenate(each), rtol=1e-4, atol=1e-5).item()


def test_heads_that_make_no_whole_groups_are_refused(tiny: Any) -> None:
    with pytest.raises(ValueError, match="16 channels make no whole groups of group_size=64"):
        vqx.make_cache(tiny.model, "h2o", budget=16, bits=4)
