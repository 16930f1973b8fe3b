"""The oracle beside these tests, and a small model."""

from typing import Any

import vqx as vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from vqx.host.models import random_llama
from vqx.testing import oracle as oracle


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 97,
    }
    model = random_llama(sizes, mx.float32)
    for layer in model.layers:
        layer.self_attn.q_proj.weight *= 4
        layer.self_attn.k_proj.weight *= 4
    return model
