"""The oracle beside these tests, and a small model."""

from typing import Any

import vqx as vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from mlx_lm.models import llama
from vqx.testing import oracle as oracle


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": 97,
    }
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(sizes))
    for layer in model.layers:
        layer.self_attn.q_proj.weight *= 4
        layer.self_attn.k_proj.weight *= 4
    return model
