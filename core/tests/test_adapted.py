"""The adapted system's façade: its names, its semantics, on absolute positions."""

import re
import warnings
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.generate import generate_step
from vqx import EvictingCache, KVCacheBuilder, KVCacheConfig, UnknownMethod

pytestmark = pytest.mark.usefixtures("toys")


def test_prefixed_fields_become_the_methods_options(tiny_llama: Callable[..., nn.Module]) -> None:
    config = KVCacheConfig(method="toy", head_dim=128, toy_budget=9, toy_n_sink=1, toy_decay=0.5)
    caches = KVCacheBuilder.for_model(tiny_llama(), config)
    assert [type(cache) for cache in caches] == [EvictingCache] * 2
    method, options, rotary, *_ = caches[0].plan
    assert (method.budget, method.n_sink, method.recent) == (9, 1, 0)
    assert (options.queries, options.cadence, options.positions) == ("keys", "token", "absolute")
    assert rotary is None


def test_what_is_not_given_is_the_adapted_systems_default() -> None:
    assert KVCacheConfig(method="toy").options == {"budget": 512, "recent": 0, "decay": 0.98}
    assert KVCacheConfig(method="toy", toy_recent=3).options["recent"] == 3


def test_a_hyphen_in_a_name_is_an_underscore_in_its_prefix() -> None:
    assert KVCacheConfig(method="toy-newest", toy_newest_budget=7).options == {"budget": 7}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("toy_decai", "toy has no option 'decai'; did you mean 'decay'"),
        ("h2o_budget", "h2o_budget does not belong to method='toy'; its options start with 'toy_'"),
        ("budget", "budget does not belong to method='toy'"),
    ],
)
def test_an_unknown_or_foreign_field_is_refused(field: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        KVCacheConfig(method="toy", **{field: 4})


def test_values_are_checked_before_any_model_is_there() -> None:
    with pytest.raises(ValueError, match="budget=2 leaves no room"):
        KVCacheConfig(method="toy", toy_budget=2)
    with pytest.raises(UnknownMethod):
        KVCacheConfig(method="unheard-of")


def test_another_rope_base_is_not_used_and_the_right_one_is_named(
    tiny_llama: Callable[..., nn.Module],
) -> None:
    model = tiny_llama(rope_theta=500000.0)
    config = KVCacheConfig(method="toy", toy_budget=9, toy_rope_base=10000.0)
    with pytest.warns(UserWarning, match="rope_base=10000 is not used, and differs from the model's 500000"):
        KVCacheBuilder.for_model(model, config)


def test_the_models_own_rope_base_needs_no_warning(tiny_llama: Callable[..., nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fields in ({}, {"toy_rope_base": 10000.0}, {"toy_rope_base": 10000}):
            KVCacheBuilder.for_model(tiny_llama(), KVCacheConfig(method="toy", toy_budget=9, **fields))


def test_engine_options_may_be_given_with_the_methods_prefix(tiny_llama: Callable[..., nn.Module]) -> None:
    config = KVCacheConfig(
        method="toy", toy_budget=9, toy_cadence="block", toy_interval=4, toy_queries="centred-keys"
    )
    options = KVCacheBuilder.for_model(tiny_llama(), config)[0].plan.options
    assert (options.queries, options.cadence, options.interval) == ("centred-keys", "block", 4)


def test_code_written_for_the_adapted_system_runs(tiny_llama: Callable[..., nn.Module]) -> None:
    model = tiny_llama()
    config = KVCacheConfig(method="toy", head_dim=16, toy_budget=10, toy_n_sink=2, toy_recent=2)
    caches = KVCacheBuilder.for_model(model, config)
    model.make_cache = lambda *_a, **_k: caches
    prompt = mx.random.randint(0, 97, (40,), key=mx.random.key(1))
    tokens = [int(token) for token, _ in generate_step(prompt, model, max_tokens=12, prefill_step_size=16)]
    assert len(tokens) == 12
    for cache in caches:
        assert cache.tokens_kept == 10
        assert cache.tokens_seen >= 51
        assert cache.compression_ratio > 5
