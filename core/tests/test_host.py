"""The border to mlx-lm: which caches are replaced, how queries are seen, and what never changes."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import base, llama
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache
from vqx import EvictingCache, UnknownMethod, attach, detach, make_cache
from vqx.host.layers import attention_of
from vqx.host.rotaries import _likewise
from vqx.host.watching import watch_attention
from vqx.state.positions import rotary_of
from vqx.state.rows import filled

pytestmark = pytest.mark.usefixtures("toys")

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 97,
    "rms_norm_eps": 1e-6,
}
KINDS: dict[str, Mapping[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "plamo": {"n_shared_head": 2},
    "gemma3_text": {"sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
    "qwen3_next": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 512,
        "full_attention_interval": 4,
    },
    "cohere2": {"sliding_window": 8, "sliding_window_pattern": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
    "nemotron_h": {
        "hybrid_override_pattern": list("M-*-"),
        "max_position_embeddings": 512,
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 8,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
    },
    "phi3small": {
        "vocab_size": 100352,  # it writes to fixed places of its logits
        "dense_attention_every_n_layers": 2,
        "ff_intermediate_size": 96,
        "gegelu_limit": 20.0,
        "layer_norm_epsilon": 1e-5,
    },
    "gemma3n": {
        "text_config": {
            **SMALL,
            "model_type": "gemma3n",
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 97,
            "sliding_window": 8,
            "max_position_embeddings": 512,
            "rope_local_base_freq": 10000.0,
            "rope_theta": 10000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.0] * 4,
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        }
    },
    "mamba": {
        "state_size": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
}


def tiny(kind: str) -> nn.Module:
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict({"model_type": kind, **SMALL, **KINDS[kind]}))
    mx.eval(model.parameters())
    return model


def run(model: nn.Module, caches: list[Any], forwards: list[int], seed: int = 1) -> mx.array:
    """The logits of random tokens, fed in forwards of these lengths: ``[1, T, vocabulary]``."""
    tokens = mx.random.randint(0, 97, (1, sum(forwards)), key=mx.random.key(seed))
    cuts = np.cumsum([0, *forwards]).tolist()
    found = []
    for first, last in pairwise(cuts):
        found.append(model(tokens[:, first:last], cache=caches))
        mx.eval(found[-1], [cache.state for cache in caches])
    return mx.concatenate(found, axis=1)


def generated(model: nn.Module, seed: int = 1, **options: Any) -> list[int]:
    prompt = mx.random.randint(0, 97, (40,), key=mx.random.key(seed))
    steps = generate_step(prompt, model, max_tokens=12, prefill_step_size=16, **options)
    return [int(token) for token, _ in steps]


@pytest.mark.parametrize("forwards", [[50, *[1] * 10], [16, 16, 16, 2, *[1] * 10], [1] * 60], ids=str)
@pytest.mark.parametrize("engine", [{}, {"cadence": "token"}, {"queries": "keys"}, {"interval": 4}], ids=str)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["fp32", "bf16"])
def test_below_the_budget_logits_are_plain_mlx_lms_bit_for_bit(
    dtype: mx.Dtype, engine: Mapping[str, Any], forwards: list[int], tiny_llama: Callable[..., nn.Module]
) -> None:
    model = tiny_llama(dtype=dtype)
    caches = make_cache(model, "toy", budget=60, **engine)
    assert mx.array_equal(run(model, caches, forwards), run(model, make_prompt_cache(model), forwards)).item()
    assert all(cache.tokens_kept == 60 for cache in caches)


@pytest.mark.parametrize(
    ("kind", "replaced"), [("gemma3_text", [1, 3]), ("qwen3_next", [3])], ids=["gemma3", "qwen3-next"]
)
def test_sliding_and_recurrent_layers_stay_as_the_model_made_them(kind: str, replaced: list[int]) -> None:
    model = tiny(kind)
    own, caches = model.make_cache(), make_cache(model, "toy", budget=40)
    assert len(caches) == len(own)
    for number, (cache, before) in enumerate(zip(caches, own, strict=True)):
        assert type(cache) is (EvictingCache if number in replaced else type(before))
        assert type(before) in ((KVCache,) if number in replaced else (RotatingKVCache, ArraysCache))
    assert [caches[number].number for number in replaced] == replaced
    forwards = [16, 14, *[1] * 10]
    difference = mx.abs(run(model, caches, forwards) - run(model, own, forwards))
    assert mx.max(difference).item() == 0.0
    run(model, caches, [30, 1, 1], seed=2)
    assert all(caches[number].tokens_kept == 40 for number in replaced)


def test_a_model_without_key_value_caches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mlx_lm.models.mamba: this model makes no plain key-value cache"):
        make_cache(tiny("mamba"), "toy", budget=8)


def test_something_that_is_no_language_model_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has neither layers nor make_cache"):
        make_cache(nn.Linear(2, 2), "toy", budget=8)


def test_where_queries_cannot_be_seen_centred_keys_stand_in_with_a_warning() -> None:
    model = tiny("plamo")
    with pytest.warns(
        UserWarning,
        match=r"mlx_lm.models.plamo reads keys of 4 heads that it makes from the 2 held: centred keys",
    ) as said:
        caches = make_cache(model, "toy", budget=8)
    assert said[0].filename == __file__, "the warning points at vqx, not at its caller"
    assert {cache.plan.options.queries for cache in caches} == {"centred-keys"}
    run(model, caches, [20, 1, 1])
    assert {cache.tokens_kept for cache in caches} == {8}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_cache(model, "toy", budget=8, queries="centred-keys")
    with pytest.raises(
        ValueError, match=r"queries='model': mlx_lm.models.plamo .* use queries='centred-keys'"
    ):
        make_cache(model, "toy", budget=8, queries="model")


def test_latent_attention_is_seen_and_token_cadence_says_what_works_instead() -> None:
    """MLA reads keys of many heads that it makes from one latent head."""
    model = tiny("deepseek_v3")
    caches = make_cache(model, "toy", budget=8, queries="model")
    run(model, caches, [20, 5, 1, 1])
    assert {cache.tokens_kept for cache in caches} == {8}
    with pytest.raises(ValueError, match=r"cadence='token' needs.*use queries='centred-keys'"):
        make_cache(model, "toy", budget=8, queries="model", cadence="token")
    with pytest.raises(ValueError, match=r"values that change with their position.*positions='absolute'"):
        make_cache(model, "toy", budget=8, positions="compact")


def test_a_trial_evaluates_nothing(
    tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, noted = tiny_llama(), []
    monkeypatch.setattr(nn.RMSNorm, "__call__", lambda norm, x: (noted.append(x), x * mx.nan)[1])
    before = mx.get_active_memory()
    make_cache(model, "toy", budget=8)
    assert noted
    assert mx.get_active_memory() - before < 2**16


def test_budgets_that_differ_are_refused_where_layers_share_the_mask_of_the_first() -> None:
    model = tiny("deepseek_v3")
    layers = SMALL["num_hidden_layers"]
    with pytest.raises(ValueError, match=r"every layer must keep as many rows; give one budget for all"):
        make_cache(model, "toy", budget=[8] * (layers - 1) + [9])
    assert make_cache(model, "toy", budget=[8] * layers)


def test_budgets_may_differ_where_masks_fit_any_number_of_rows(
    tiny_llama: Callable[..., nn.Module],
) -> None:
    model = tiny_llama()
    caches = make_cache(model, "toy", budget=[12, 8])
    run(model, caches, [20, 5, 1, 1])
    assert [cache.tokens_kept for cache in caches] == [12, 8]


def test_where_only_some_layers_can_be_seen_the_others_alone_use_centred_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """phi3small writes out every second layer's attention, and nobody looks at its arithmetic here."""
    monkeypatch.setattr("vqx.host.caches.watch_arithmetic", lambda model: None)
    monkeypatch.setattr("mlx_lm.models.phi3small.mx", mx)  # another test may have made it look
    model = tiny("phi3small")
    with pytest.warns(
        UserWarning, match=r"attention by itself in 2 of its layers \(the first is number 0\): centred keys"
    ):
        caches = make_cache(model, "toy", budget=8)
    sources = [cache.plan.options.queries for cache in caches]
    assert sources == ["centred-keys", "model"] * 2
    run(model, caches, [20, 5, 1, 1])
    assert {cache.tokens_kept for cache in caches} == {8}
    with pytest.raises(ValueError, match="in 2 of its layers"):
        make_cache(model, "toy", budget=8, queries="model")


def test_a_cache_is_matched_with_its_layer_where_others_have_none() -> None:
    model = tiny("nemotron_h")
    caches = make_cache(model, "toy", budget=8)
    (evicting,) = [cache for cache in caches if isinstance(cache, EvictingCache)]
    assert (len(caches), len(model.layers), evicting.number) == (2, 4, 1)
    assert attention_of(model, 1) is model.layers[2].mixer
    assert attention_of(tiny("gemma3n"), 1) is not None


def test_rows_that_a_layer_places_by_another_cache_are_not_made_compact() -> None:
    with pytest.raises(ValueError, match=r"layer 1 .* asks another layer's cache.*positions='absolute'"):
        make_cache(tiny("gemma3n"), "toy", budget=8, positions="compact")


def test_attention_that_a_model_writes_out_is_seen_soft_caps_included() -> None:
    """gemma2: the mass of the first layer, from its weights, in float64."""
    model = tiny("gemma2")
    attention = model.layers[0].self_attn
    attention.attn_logit_softcapping = 0.5  # a cap that bites
    caches = make_cache(model, "toy", budget=60, queries="model")
    tokens = mx.random.randint(0, 97, (1, 30), key=mx.random.key(1))
    for first, last in ((0, 20), (20, 29), (29, 30)):
        model(tokens[:, first:last], cache=caches)
    hidden = model.layers[0].input_layernorm(model.model.embed_tokens(tokens) * 64**0.5)
    queries = attention.rope(attention.q_proj(hidden).reshape(1, 30, 4, 16).swapaxes(1, 2))
    keys = attention.rope(attention.k_proj(hidden).reshape(1, 30, 2, 16).swapaxes(1, 2))
    wide = [np.array(a).astype(np.float64) for a in (queries.reshape(1, 2, 2, 30, 16), keys)]
    logits = np.einsum("bhgsd,bhnd->bhgsn", *wide) * attention.scale
    powers = np.exp(np.tanh(logits / 0.5) * 0.5) * np.tri(30)
    mass = (powers / powers.sum(-1, keepdims=True)).sum(3).mean(2)
    np.testing.assert_allclose(np.array(caches[0].layer.rows.columns["mass"]), mass, atol=1e-5)
    assert np.abs(logits).max() > 1, "no logit was capped"


def test_arithmetic_is_left_alone_where_attention_shows_its_queries(
    tiny_llama: Callable[..., nn.Module],
) -> None:
    make_cache(tiny_llama(), "toy", budget=8)
    assert llama.mx is mx


@pytest.mark.parametrize("queries", ["model", "keys", "centred-keys", None])
def test_methods_are_told_where_queries_come_from(
    queries: str | None, tiny_llama: Callable[..., nn.Module]
) -> None:
    cache = make_cache(tiny_llama(), "toy", budget=8, queries=queries)[1]
    assert cache.plan.options.queries == (queries or "model")
    assert cache.number == 1


def test_two_calls_share_nothing(tiny_llama: Callable[..., nn.Module]) -> None:
    model = tiny_llama()
    first, second = make_cache(model, "toy", budget=8), make_cache(model, "toy", budget=8)
    run(model, first, [20, 1])
    assert not {id(cache) for cache in first} & {id(cache) for cache in second}
    assert all(cache.empty() for cache in second)


def test_an_attached_model_makes_fresh_caches_at_each_call_and_never_calls_itself(
    tiny_llama: Callable[..., nn.Module],
) -> None:
    model = tiny_llama()
    plain = generated(model)
    attach(model, "toy", budget=12)
    first, second = make_prompt_cache(model), model.make_cache()
    assert {type(cache) for cache in first + second} == {EvictingCache}
    assert not {id(cache) for cache in first} & {id(cache) for cache in second}
    evicting = generated(model)
    assert evicting != plain
    generated(model, seed=2)  # another conversation in between
    assert generated(model) == evicting == generated(model, prompt_cache=make_cache(model, "toy", budget=12))

    attach(model, "toy-newest", budget=10)  # attaching again replaces
    assert model.make_cache()[0].plan.method.budget == 10
    detach(model)
    assert {type(cache) for cache in make_prompt_cache(model)} == {KVCache}
    assert generated(model) == plain
    detach(model)  # nothing is attached: nothing happens


def test_attaching_changes_neither_parameters_nor_what_a_model_saves(
    tiny_llama: Callable[..., nn.Module],
) -> None:
    model = tiny_llama()
    before = dict(nn.utils.tree_flatten(model.parameters()))
    attach(model, "toy", budget=12)
    after = dict(nn.utils.tree_flatten(model.parameters()))
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 3}, "budget=3 leaves no room"),
        ({"budget": 8, "cadance": "token"}, "did you mean 'cadence'"),
        ({"budget": [8, 9, 10]}, "budget lists 3 numbers, and the model has 2 layers"),
        ({}, "say how many rows to keep"),
        ({"budget": 8, "interval": 0}, "interval=0"),
    ],
)
def test_options_are_checked_when_attached_and_a_refusal_attaches_nothing(
    options: dict[str, Any], message: str, tiny_llama: Callable[..., nn.Module]
) -> None:
    model = tiny_llama()
    with pytest.raises(ValueError, match=message):
        attach(model, "toy", **options)
    assert {type(cache) for cache in make_prompt_cache(model)} == {KVCache}


def test_the_hook_passes_other_caches_through_bit_for_bit(
    tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama()
    for _ in range(2):
        watch_attention(model)
    hooked = llama.scaled_dot_product_attention
    assert hooked is not base.scaled_dot_product_attention
    assert hooked.__wrapped__ is base.scaled_dot_product_attention, "the hook was put on a hook"
    rotating = [RotatingKVCache(8, keep=2) for _ in model.layers]
    found = [run(model, caches, [20, 1, 1, 5]) for caches in (make_prompt_cache(model), rotating)]
    monkeypatch.setattr(llama, "scaled_dot_product_attention", base.scaled_dot_product_attention)
    rotating = [RotatingKVCache(8, keep=2) for _ in model.layers]
    for before, caches in zip(found, (make_prompt_cache(model), rotating), strict=True):
        assert mx.array_equal(before, run(model, caches, [20, 1, 1, 5])).item()


def test_the_hook_shows_queries_scale_mask_and_learned_sinks_and_changes_no_number(
    tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tiny_llama(), "toy", budget=8)[0]
    queries, keys, values = mx.random.normal((3, 1, 4, 6, 16), key=mx.random.key(5))
    keys, values, sinks = keys[:, :2], values[:, :2], mx.array([0.0, 1.0, 2.0, 3.0])
    shown: list[Any] = []
    monkeypatch.setattr(EvictingCache, "observe", lambda self, *given: shown.append(given))
    for mask in ("causal", mx.zeros((6, 6))):
        found = llama.scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=0.3, mask=mask, sinks=sinks
        )
        plain = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask=mask, sinks=sinks)
        assert mx.array_equal(found, plain).item()
        given = shown.pop()
        assert given[0] is queries
        assert given[1] is keys
        assert given[2] == 0.3
        assert given[3] is mask
        assert given[4] is sinks


def test_statistics_come_from_the_models_own_queries(tiny_llama: Callable[..., nn.Module]) -> None:
    """The mass of the first layer, against queries and keys made from its weights."""
    model = tiny_llama()
    cache = make_cache(model, "toy", budget=60)
    tokens = mx.random.randint(0, 97, (1, 30), key=mx.random.key(1))
    model(tokens[:, :29], cache=cache)
    model(tokens[:, 29:], cache=cache)
    attention = model.layers[0].self_attn
    hidden = model.layers[0].input_layernorm(model.model.embed_tokens(tokens))
    queries = attention.rope(attention.q_proj(hidden).reshape(1, 30, 4, 16).swapaxes(1, 2))
    keys = attention.rope(attention.k_proj(hidden).reshape(1, 30, 2, 16).swapaxes(1, 2))
    wide = [np.array(a).astype(np.float64) for a in (queries.reshape(1, 2, 2, 30, 16), keys)]
    logits = np.einsum("bhgsd,bhnd->bhgsn", *wide) * attention.scale
    powers = np.exp(logits) * np.tri(30)
    mass = (powers / powers.sum(-1, keepdims=True)).sum(3).mean(2)
    np.testing.assert_allclose(np.array(cache[0].layer.rows.columns["mass"]), mass, atol=1e-4)


def test_generation_in_chunks_reads_no_more_rows_than_the_budget_and_the_chunk(
    tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, read = tiny_llama(), []
    attach(model, "toy", budget=12)
    attend = llama.scaled_dot_product_attention

    def counted(queries: mx.array, keys: mx.array, *rest: Any, **more: Any) -> mx.array:
        read.append((queries.shape[2], keys.shape[2]))
        return attend(queries, keys, *rest, **more)

    monkeypatch.setattr(llama, "scaled_dot_product_attention", counted)
    for step in (5, 16, 2048):
        read.clear()
        prompt = mx.random.randint(0, 97, (60,), key=mx.random.key(1))
        list(generate_step(prompt, model, max_tokens=8, prefill_step_size=step))
        assert all(rows <= 12 + queries for queries, rows in read)
        assert {queries for queries, _ in read} >= {1, min(step, 59)}


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_prompts_are_the_full_caches(length: int, tiny_llama: Callable[..., nn.Module]) -> None:
    model = tiny_llama()
    caches = make_cache(model, "toy", budget=12)
    forwards = [length, *[1] * 5]
    assert mx.array_equal(run(model, caches, forwards), run(model, make_prompt_cache(model), forwards)).item()


@pytest.mark.parametrize("queries", ["model", "centred-keys"])
def test_a_batch_is_as_good_as_its_sequences_alone(
    queries: str, tiny_llama: Callable[..., nn.Module]
) -> None:
    model = tiny_llama()
    tokens = mx.random.randint(0, 97, (3, 50), key=mx.random.key(1))

    def logits(tokens: mx.array) -> mx.array:
        caches = make_cache(model, "toy", budget=12, queries=queries)
        return mx.concatenate(
            [model(tokens[:, a:b], cache=caches) for a, b in ((0, 30), (30, 49), (49, 50))], axis=1
        )

    together = logits(tokens)
    for row in range(3):
        # a matrix product of another height adds up in another order
        assert mx.max(mx.abs(together[row] - logits(tokens[row : row + 1])[0])).item() < 1e-4


def test_several_turns_stay_bounded(tiny_llama: Callable[..., nn.Module]) -> None:
    model = tiny_llama()
    caches = make_cache(model, "toy", budget=24)
    for turn, length in enumerate((30, 5, 1, 17, 2, 40)):
        run(model, caches, [length, *[1] * 6], seed=turn)
        assert {cache.tokens_kept for cache in caches} == {24}
        assert all(cache.kept_bytes == 24 * 2 * 2 * 16 * 4 for cache in caches)
    assert {cache.tokens_seen for cache in caches} == {95 + 36}


def test_layers_whose_modules_turn_alike_share_one(tiny_llama: Callable[..., nn.Module]) -> None:
    caches = make_cache(tiny_llama(), "toy", budget=8, positions="compact")
    assert len(caches) > 1
    assert len({id(cache.plan.rotary) for cache in caches}) == 1
    one, other, scaled = (rotary_of(nn.RoPE(8, base=base), 8) for base in (1e4, 1e4, 1.001e4))
    assert _likewise(one, other)
    assert not _likewise(one, scaled)


def test_keys_that_the_model_does_not_turn_are_not_turned_for_compact_positions() -> None:
    model = tiny("cohere2")
    caches = make_cache(model, "toy", budget=8, positions="compact")
    run(model, caches, [20, 1, 1])
    evicting = [cache for cache in caches if isinstance(cache, EvictingCache)]
    assert evicting
    for cache in evicting:
        assert cache.layer is not None
        assert cache.layer.evicted
        assert mx.array_equal(cache.keys_and_values()[0], filled(cache.layer.rows)[0]).item()


def test_without_a_method_the_best_is_taken_or_its_package_named(
    tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vqx.host import caches

    with pytest.raises(UnknownMethod, match="'h2o', and it is not installed: pip install vqx-h2o"):
        make_cache(tiny_llama(), budget=16)
    best = {None: ("toy", {}), "end": ("toy-newest", {"prompt": "whole"})}
    monkeypatch.setattr(caches, "BEST", best)
    plain, asked = (make_cache(tiny_llama(), budget=16, question=q)[0].plan for q in (None, "end"))
    assert (plain.method.recent, plain.options.prompt) == (2, "chunks")
    assert (asked.method.recent, asked.options.prompt) == (0, "whole")
    named = make_cache(tiny_llama(), "toy", budget=16, question="end")[0].plan
    assert (named.method.recent, named.options.prompt) == (2, "whole")
    assert (
        make_cache(tiny_llama(), budget=16, question="end", prompt="chunks")[0].plan.options.prompt
        == "chunks"
    )
    with pytest.raises(ValueError, match="question='start' is not known; choose one of None, 'end'"):
        make_cache(tiny_llama(), budget=16, question="start")
