"""Models to time: the embedded one, any that mlx-lm loads, or random weights of well-known shapes."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from vqx.host.models import load_model, random_llama

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-3.2-1b": {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "head_dim": 64,
                     "tie_word_embeddings": True},
    "llama-3.2-3b": {"hidden_size": 3072, "num_hidden_layers": 28, "intermediate_size": 8192, "head_dim": 128,
                     "num_attention_heads": 24, "tie_word_embeddings": True},
    "llama-3.1-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
                     "head_dim": 128, "tie_word_embeddings": False},
}  # fmt: skip
REST = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0}


class Subject(NamedTuple):
    """A model, and what a step of it reads."""

    name: str
    model: nn.Module
    step: Any
    """(tokens ``[B, S]``, caches) -> numbers that need every layer."""
    weight_bytes: int


def subject(name: str, part: str = "model") -> Subject:
    """A model by name; ``part`` "attention" leaves out all but the layers' attention.

    Raises:
        ValueError: a model whose layers have no attention of the usual name.
    """
    random = name in SHAPES
    model: Any = random_llama({**REST, **SHAPES[name]}, mx.bfloat16) if random else load_model(name)[0]
    if part == "model":
        return Subject(name, model, lambda tokens, caches: model(tokens, cache=caches), _bytes(model))
    attention = [getattr(layer, "self_attn", None) for layer in model.layers]
    if None in attention:
        raise ValueError(f"--part attention: {name} has layers without self_attn; use --part model")
    return Subject(f"{name}, attention alone", model, _attention(model), sum(map(_bytes, attention)))


def _attention(model: Any) -> Any:
    def step(tokens: mx.array, caches: list[Any]) -> mx.array:
        hidden: mx.array = model.model.embed_tokens(tokens)
        mask = caches[0].make_mask(tokens.shape[1], return_array=False, window_size=None)
        for layer, cache in zip(model.layers, caches, strict=True):
            hidden = hidden + layer.self_attn(layer.input_layernorm(hidden), mask, cache)
        return hidden

    return step


def _bytes(module: Any) -> int:
    return sum(array.nbytes for _, array in cast(Any, tree_flatten(module.parameters())))
