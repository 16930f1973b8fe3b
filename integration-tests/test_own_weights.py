"""Scores against float64 sums from a model's weights and its paper's equations: no call is watched here.

The first layer's queries and keys depend on tokens alone, whatever was evicted.
"""

from itertools import accumulate, pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
import vqx
from tiny_models.build import tiny_model

Wide = npt.NDArray[np.float64]

LENGTHS = (20, 1, 1, 9, *[1] * 9)
TOKENS = sum(LENGTHS)
BUDGET = 12


def wide(array: mx.array) -> Wide:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def normed(x: Wide, weight: Wide, eps: float) -> Wide:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight)


def turned(x: Wide, base: float, *, interleaved: bool = False) -> Wide:
    """``[H, T, D]``, each pair of channels turned by its token's position."""
    width = x.shape[-1]
    angle = np.arange(TOKENS)[:, None] * base ** (-np.arange(0, width, 2) / width)
    one, other = (x[..., ::2], x[..., 1::2]) if interleaved else np.split(x, 2, axis=-1)
    pair = one * np.cos(angle) - other * np.sin(angle), one * np.sin(angle) + other * np.cos(angle)
    return np.stack(pair, axis=-1).reshape(x.shape) if interleaved else np.concatenate(pair, axis=-1)


def heads(x: Wide, layer: Any, count: int) -> Wide:
    """``[T, width]`` to ``[count, T, D]`` through a linear layer."""
    made = x @ wide(layer.weight).T + (wide(layer.bias) if "bias" in layer else 0.0)
    return made.reshape(TOKENS, count, -1).swapaxes(0, 1)


def grouped(queries: Wide, keys: Wide, scale: float) -> Wide:
    """Logits ``[H, G, T, T]``; query head h reads head h // G."""
    queries = queries.reshape(keys.shape[0], -1, *queries.shape[1:])
    return np.einsum("hgsd,hnd->hgsn", queries, keys) * scale


def llama(model: Any, tokens: list[int]) -> Wide:
    layer, args = model.layers[0], model.args
    x = normed(wide(model.model.embed_tokens.weight)[tokens], wide(layer.input_layernorm.weight), 1e-5)
    queries, keys = (heads(x, p, n) for p, n in ((layer.self_attn.q_proj, 4), (layer.self_attn.k_proj, 2)))
    return grouped(turned(queries, args.rope_theta), turned(keys, args.rope_theta), 16**-0.5)


def gpt_oss(model: Any, tokens: list[int]) -> Wide:
    """Biases, and sinks that :func:`logits_and_sinks` takes along."""
    layer = model.model.layers[0]
    x = normed(wide(model.model.embed_tokens.weight)[tokens], wide(layer.input_layernorm.weight), 1e-5)
    queries, keys = (heads(x, p, n) for p, n in ((layer.self_attn.q_proj, 4), (layer.self_attn.k_proj, 2)))
    return grouped(turned(queries, 10000.0), turned(keys, 10000.0), 16**-0.5)


def gemma3_text(model: Any, tokens: list[int]) -> Wide:
    """Its own scale, norms of queries and keys, embeddings grown by the root of their width (in bfloat16)."""
    layer = model.model.layers[0]
    attention = layer.self_attn
    root = float(mx.array(64**0.5, mx.bfloat16).item())
    x = wide(model.model.embed_tokens.weight)[tokens] * root
    x = normed(x, 1.0 + wide(layer.input_layernorm.weight), 1e-5)
    queries = normed(heads(x, attention.q_proj, 4), 1.0 + wide(attention.q_norm.weight), 1e-5)
    keys = normed(heads(x, attention.k_proj, 2), 1.0 + wide(attention.k_norm.weight), 1e-5)
    base = model.args.rope_theta
    return grouped(turned(queries, base), turned(keys, base), model.args.query_pre_attn_scalar**-0.5)


def gemma2(model: Any, tokens: list[int]) -> Wide:
    """Soft caps: c tanh(logits / c)."""
    layer = model.model.layers[0]
    x = wide(model.model.embed_tokens.weight)[tokens] * 64**0.5
    x = normed(x, 1.0 + wide(layer.input_layernorm.weight), 1e-5)
    queries, keys = (heads(x, p, n) for p, n in ((layer.self_attn.q_proj, 4), (layer.self_attn.k_proj, 2)))
    scale, cap = model.args.query_pre_attn_scalar**-0.5, model.args.attn_logit_softcapping
    logits = grouped(turned(queries, 10000.0), turned(keys, 10000.0), scale)
    return np.tanh(logits / cap) * cap


def deepseek_v3(model: Any, tokens: list[int]) -> Wide:
    """MLA as published: keys of every head from one latent, and one rotated key beside them."""
    layer = model.model.layers[0]
    attention = layer.self_attn
    x = normed(wide(model.model.embed_tokens.weight)[tokens], wide(layer.input_layernorm.weight), 1e-5)
    low = normed(x @ wide(attention.q_a_proj.weight).T, wide(attention.q_a_layernorm.weight), 1e-6)
    plain, rotated = np.split(heads(low, attention.q_b_proj, 4), [16], axis=-1)
    latent, key = np.split(x @ wide(attention.kv_a_proj_with_mqa.weight).T, [32], axis=-1)
    latent = normed(latent, wide(attention.kv_a_layernorm.weight), 1e-6)
    made = np.einsum("tr,hrd->htd", latent, wide(attention.embed_q.weight))
    logits = np.einsum("hsd,hnd->hsn", plain, made)
    logits = logits + turned(rotated, 10000.0, interleaved=True) @ turned(key, 10000.0, interleaved=True).T
    return np.asarray(logits[None] * 24**-0.5)


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (llama, {"layer_types": ["full_attention"] * 4}),
    "gpt_oss": (gpt_oss, {"layer_types": ["full_attention", "sliding_attention"] * 2}),
    "gemma3_text": (gemma3_text, {"sliding_window_pattern": 1, "query_pre_attn_scalar": 40.0}),
    "gemma2": (gemma2, {"attn_logit_softcapping": 1.5}),
    "deepseek_v3": (deepseek_v3, {}),
}


@pytest.mark.parametrize("file", MODELS)
def test_accumulated_mass_is_that_of_the_models_own_equations(file: str) -> None:
    logits_of, changes = MODELS[file]
    model = tiny_model(file, **changes)
    assert model is not None
    tokens = np.random.default_rng(0).integers(0, 96, TOKENS).tolist()
    logits = logits_of(model, tokens)
    sinks = wide(model.model.layers[0].self_attn.sinks).reshape(2, 2, 1, 1) if file == "gpt_oss" else None

    caches = vqx.make_cache(model, "h2o", budget=BUDGET, n_sink=1, recent=2, queries="model")
    expected = np.zeros((logits.shape[0], TOKENS))
    for first, last in pairwise(accumulate(LENGTHS, initial=0)):
        model(mx.array([tokens[first:last]]), cache=caches)
        at = np.array(caches[0].position)[0]  # what this forward read, [H, n]
        now = np.take_along_axis(logits[:, :, first:last], at[:, None, None], axis=3)
        powers = np.where(at[:, None, None] <= np.arange(first, last)[:, None], np.exp(now), 0.0)
        total = powers.sum(-1, keepdims=True) + (0.0 if sinks is None else np.exp(sinks))
        gained = (powers / total).sum(axis=2).mean(axis=1)
        np.put_along_axis(expected, at, np.take_along_axis(expected, at, axis=1) + gained, axis=1)

    found = np.array(caches[0].layer.rows.columns["mass"])[0]
    # sums of up to 40 weights: 1e-5 of each
    np.testing.assert_allclose(found, np.take_along_axis(expected, at, axis=1), rtol=1e-5, atol=1e-5)
    assert caches[0].tokens_kept == BUDGET < TOKENS
    assert np.ptp(found) > 0.5, "every row has the same mass"
