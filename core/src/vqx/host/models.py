"""Models by name, and mlx-lm's own bounded cache: for commands that compare and may not know mlx-lm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
from mlx_lm.models import llama
from mlx_lm.models.cache import RotatingKVCache

from vqx.host.embedded import load_embedded
from vqx.host.layers import caches_with

EMBEDDED = "embedded"


def load_model(name: str = EMBEDDED) -> tuple[nn.Module, Any]:
    """A model and its tokenizer: ``embedded``, or whatever ``mlx_lm.load`` takes (a folder, a repository).

    Raises:
        ValueError: what is written as a folder is none.
    """
    if name == EMBEDDED:
        return load_embedded()
    if (name.startswith((".", "/", "~")) or name.count("/") > 1) and not Path(name).expanduser().is_dir():
        raise ValueError(f"model {name!r}: there is no such folder; give one, a repository, or {EMBEDDED!r}")
    model, tokenizer = mlx_lm.load(name)[:2]
    return model, tokenizer


def rotating_caches(model: nn.Module, budget: int, keep: int = 4) -> list[Any]:
    """mlx-lm's rotating cache of ``budget`` rows in every layer that holds a plain key-value cache."""
    return caches_with(model, lambda number: RotatingKVCache(max_size=budget, keep=keep))


def random_llama(sizes: Mapping[str, Any], dtype: mx.Dtype, *, seed: int = 0) -> nn.Module:
    """A llama of these sizes with random weights, for tests and timing: no file is needed."""
    mx.random.seed(seed)
    args = {"model_type": "llama", "rms_norm_eps": 1e-5, **sizes}
    model = llama.Model(llama.ModelArgs.from_dict(args))
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model
