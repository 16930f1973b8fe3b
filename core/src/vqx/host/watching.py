"""The attention hook: let a cache see the model's own queries.

``mlx_lm.models.base.scaled_dot_product_attention`` is handed the cache; replacing that name in the module
of a model's attention shows the true queries, scale, mask and learned sinks. Other caches pass through.
"""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import base

from vqx.cache import EvictingCache

NAME = "scaled_dot_product_attention"


def watch_attention(model: nn.Module) -> bool:
    """Install the hook in the modules of the model's classes; False where there is nothing to hook."""
    found = False
    for module in _modules_of(model):
        attend = getattr(module, NAME, None)
        if attend is None:
            continue
        found = True
        if not getattr(attend, "shows_queries_to_vqx", False):
            setattr(module, NAME, _watched(attend))
    return found


def _modules_of(model: nn.Module) -> list[ModuleType]:
    """The Python modules in which the model's classes are defined, mlx-lm's base itself left out."""
    names = {type(part).__module__ for _, part in model.named_modules()}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules and name != base.__name__]


def _watched(attend: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @functools.wraps(attend)
    def attention(
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        if isinstance(cache, EvictingCache):
            cache.observe(queries, keys, scale, mask, sinks)
        return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

    attention.shows_queries_to_vqx = True  # type: ignore[attr-defined]
    return attention
