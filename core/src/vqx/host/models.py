"""Models by name, and mlx-lm's own bounded cache: for commands that compare and may not know mlx-lm."""

from pathlib import Path
from typing import Any

import mlx.nn as nn
import mlx_lm
from mlx_lm.models.cache import KVCache, RotatingKVCache

from vqx.host.embedded import load_embedded
from vqx.host.layers import own_caches

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
    return [
        RotatingKVCache(max_size=budget, keep=keep) if type(cache) is KVCache else cache
        for cache in own_caches(model)
    ]
