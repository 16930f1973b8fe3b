"""The queries of a text, as attention gets them."""

import importlib
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx.host.queries import queries_of

TOKENS = [5, 3, 90, 17, 4, 4, 61]


def test_queries_come_rotated_and_by_the_head_they_share(tiny_llama: Callable[..., nn.Module]) -> None:
    model: Any = tiny_llama(layers=3)
    found = queries_of(model, TOKENS)
    assert {number: queries.shape for number, queries in found.items()} == dict.fromkeys(
        range(3), (2, 2, 7, 16)
    )
    layer = model.layers[0]
    asked = layer.self_attn.q_proj(layer.input_layernorm(model.model.embed_tokens(mx.array([TOKENS]))))
    turned = layer.self_attn.rope(asked.reshape(1, 7, 4, 16).swapaxes(1, 2))
    np.testing.assert_allclose(np.array(found[0]), np.array(turned).reshape(2, 2, 7, 16), atol=1e-5)


def test_a_model_that_hides_its_queries_is_refused() -> None:
    plamo = importlib.import_module("mlx_lm.models.plamo")
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    model = plamo.Model(
        plamo.ModelArgs.from_dict(
            {"model_type": "plamo", **sizes, "vocab_size": 97, "rms_norm_eps": 1e-6, "n_shared_head": 2}
        )
    )
    with pytest.raises(ValueError, match=r"layer 0 of mlx_lm.models.plamo .*: no queries to read"):
        queries_of(model, TOKENS)


def test_no_tokens_are_refused(tiny_llama: Callable[..., nn.Module]) -> None:
    with pytest.raises(ValueError, match="no tokens to read"):
        queries_of(tiny_llama(), [])
