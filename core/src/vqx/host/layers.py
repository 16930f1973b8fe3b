"""Which layer of a model a cache belongs to: hybrids have layers without one, and caches of other kinds."""

from collections.abc import Callable
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, KVCache


def own_caches(model: nn.Module) -> list[Any]:
    """The caches that the model's class makes, whatever is attached to the instance."""
    make = getattr(type(model), "make_cache", None)
    if make is not None:
        return list(make(model))
    if not hasattr(model, "layers"):
        raise ValueError(
            f"{type(model).__name__} has neither layers nor make_cache: give a language model of mlx-lm"
        )
    return [KVCache() for _ in model.layers]


def plain_layers(model: nn.Module) -> list[int]:
    """The numbers of the caches that hold plain keys and values: those that can evict.

    Layers that read the last cache's rows again (afm7) take a query's position from their number: it stays.
    """
    caches = own_caches(model)
    counted = bool(getattr(getattr(model, "model", None), "kv_reuse_layers", None))
    return [n for n, cache in enumerate(caches[: len(caches) - counted]) if type(cache) is KVCache]


def caches_with(model: nn.Module, plain: Callable[[int], Any]) -> list[Any]:
    """The model's own caches, with ``plain(number)`` in the place of each of :func:`plain_layers`."""
    places = plain_layers(model)
    return [plain(number) if number in places else cache for number, cache in enumerate(own_caches(model))]


def layer_of(model: nn.Module, number: int) -> nn.Module | None:
    """The layer that fills the cache of this number; None where that cannot be told."""
    caches, layers = own_caches(model), list(getattr(model, "layers", []))
    if len(layers) > len(caches):
        # some layers have no cache (nemotron_h), or share an earlier one (gemma3n)
        layers = [layer for layer in layers if _attention(layer) is not None]
        number = sum(not isinstance(cache, ArraysCache) for cache in caches[:number])
    return layers[number] if number < len(layers) else None


def attention_of(model: nn.Module, number: int) -> nn.Module | None:
    """The attention module of that layer; None where none is found."""
    return _attention(layer_of(model, number))


def ropes_of(model: nn.Module, number: int) -> list[Any]:
    """What may be the rotary module of that layer: a model's keys tell whether it is."""
    layer = layer_of(model, number)
    parts = [] if layer is None else [part for _, part in layer.named_modules()]
    found = [getattr(part, name, None) for part in parts for name in ("rope", "rotary_emb")]
    return [rope for rope in found if callable(rope)]


def _attention(layer: nn.Module | None) -> nn.Module | None:
    parts = () if layer is None else layer.named_modules()
    return next((part for _, part in parts if hasattr(part, "o_proj")), None)
