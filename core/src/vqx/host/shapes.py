"""Models as they are shaped: built without their weights, from a name, a ``config.json`` or a folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.utils import _get_classes

from vqx.host.embedded import embedded_config
from vqx.known import meant

_LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "intermediate_size": 8192,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "Llama-3.2-1B": {
        **_LLAMA,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
    },
    "Llama-3.2-3B": {
        **_LLAMA,
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "head_dim": 128,
    },
    "Llama-3.1-8B": {
        **_LLAMA,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
"""Configurations by name."""

EMBEDDED = "embedded"


def config_of(model: str) -> Mapping[str, Any]:
    """The configuration of a model by name, of a folder, or in a file.

    Raises:
        ValueError: says which names are known.
    """
    if model == EMBEDDED:
        return embedded_config()
    path = Path(model)
    if model not in SHAPES and path.is_dir():
        path = path / "config.json"
    if model not in SHAPES and not path.is_file():
        raise ValueError(
            f"model {model!r}: give a folder with a config.json, such a file, or one of"
            f" {', '.join([EMBEDDED, *SHAPES])}{meant(model, [EMBEDDED, *SHAPES])}"
        )
    config: Mapping[str, Any] = SHAPES[model] if model in SHAPES else json.loads(path.read_text())
    return config


def shaped(
    config: Mapping[str, Any], *, dtype: str | None = None, weight_bits: int | None = None
) -> nn.Module:
    """The model with a zero in the place of every weight: it takes no memory, and says nothing.

    Args:
        config: as of a ``config.json``.
        dtype: of the weights; None: as the configuration says, else bfloat16.
        weight_bits: quantise the weights to so many bits, in groups of 64; None: as the configuration says.

    Raises:
        ValueError: a model type that mlx-lm does not have, an unknown dtype.
    """
    kind, arguments = _get_classes(config=dict(config))
    model: nn.Module = kind(arguments.from_dict(dict(config)))
    named = dtype or config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    wanted = getattr(mx, str(named), None)
    if not isinstance(wanted, mx.Dtype):
        raise ValueError(f"dtype={named!r} is not known: give bfloat16, float16 or float32")
    model.set_dtype(wanted)
    quantized = {"bits": weight_bits, "group_size": 64} if weight_bits else config.get("quantization")
    if quantized:
        nn.quantize(model, group_size=quantized["group_size"], bits=quantized["bits"])
    model.update(
        tree_map(lambda weight: mx.broadcast_to(mx.array(0, weight.dtype), weight.shape), model.parameters())
    )
    model.eval()
    return model
