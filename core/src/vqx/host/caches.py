"""Evicting caches for a model of mlx-lm: built fresh for each call, attached to a model, detached again."""

import warnings
from collections.abc import Callable
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from vqx.build import methods_for, spec_of, split_options
from vqx.cache import EvictingCache
from vqx.host.watching import watch_attention
from vqx.options import Options, Queries
from vqx.positions import Rotary, rotary_of
from vqx.spec import LayerInfo


def make_cache(model: nn.Module, method: str, **options: Any) -> list[Any]:
    """Caches for one sequence or batch: pass them as ``prompt_cache`` to mlx-lm.

    Layers that hold plain key-value caches get evicting ones; sliding-window and state-space layers stay
    as the model made them.

    Args:
        model: a model of mlx-lm.
        method: the name of an installed method (``vqx.names()``).
        options: ``budget``, the most rows per layer between forwards, one number or one per layer; the
            method's other options; and the engine's (``vqx.Options``).

    Returns:
        One cache per cache of the model, shared with nobody.

    Raises:
        ValueError: an unknown method or option, a budget that leaves no room, a model without key-value
            caches, ``queries="model"`` or ``positions="compact"`` where the model does not allow it.
    """
    return cache_factory(model, method, **options)()


def attach(model: nn.Module, method: str, **options: Any) -> None:
    """Let every later generation, server or batch call on ``model`` use evicting caches.

    Options as for :func:`make_cache`, checked now; each call gets fresh caches. Attaching again replaces
    what was attached.
    """
    factory = cache_factory(model, method, **options)
    object.__setattr__(model, "make_cache", factory)


def detach(model: nn.Module) -> None:
    """Give the model its own caches back; nothing happens where nothing is attached."""
    model.__dict__.pop("make_cache", None)


def cache_factory(model: nn.Module, method: str, **options: Any) -> Callable[[], list[Any]]:
    """Check method and options against the model once; the result makes fresh caches at every call."""
    spec = spec_of(method)
    own, engine = split_options(spec, options)
    evicting = [number for number, cache in enumerate(own_caches(model)) if type(cache) is KVCache]
    if not evicting:
        raise ValueError(
            f"{type(model).__module__}: this model makes no plain key-value cache, so there is nothing to"
            " evict from"
        )
    run = Options(**engine)
    run = Options(**{**engine, "queries": _queries(model, run.queries)})
    queries: Queries = run.queries or "model"
    methods = methods_for(spec, own, [LayerInfo(number, queries) for number in evicting])
    rotaries = _rotaries(model, evicting) if run.positions == "compact" else [None] * len(evicting)

    def fresh() -> list[Any]:
        caches = own_caches(model)
        for number, chosen, rotary in zip(evicting, methods, rotaries, strict=True):
            caches[number] = EvictingCache(chosen, run, rotary=rotary, number=number)
        return caches

    return fresh


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


def _queries(model: nn.Module, asked: Queries | None) -> Queries:
    """Where queries come from; the hook is installed if they are the model's own."""
    if asked in ("keys", "centred-keys"):
        return asked
    if watch_attention(model):
        return "model"
    name = type(model).__module__
    if asked == "model":
        raise ValueError(
            f"queries='model': {name} computes attention by itself, so its queries cannot be seen;"
            " use queries='centred-keys'"
        )
    warnings.warn(
        f"{name} computes attention by itself: centred keys stand in for its queries, which costs quality"
        " (say queries='centred-keys' to silence this)",
        stacklevel=4,
    )
    return "centred-keys"


def rope_of(model: nn.Module, number: int) -> tuple[Any, int] | None:
    """The rotary module of a layer and its attention's head dimension; None where none is found."""
    layers = model.layers
    for _, part in layers[number].named_modules() if number < len(layers) else ():
        rope = getattr(part, "rope", None)
        if callable(rope) and hasattr(part, "k_proj"):
            heads = getattr(part, "n_kv_heads", None) or getattr(part, "num_key_value_heads", None)
            width = getattr(part, "head_dim", None)
            if width is None and heads:
                width = part.k_proj.weight.shape[0] // heads
            return (rope, int(width)) if width else None
    return None


def _rotaries(model: nn.Module, evicting: list[int]) -> list[Rotary | None]:
    if len(own_caches(model)) != len(model.layers):
        raise ValueError(
            f"positions='compact': {type(model).__module__} has {len(model.layers)} layers and"
            f" {len(own_caches(model))} caches, so it is not known which rotary module turned which keys;"
            " use positions='absolute'"
        )
    found: list[Rotary | None] = []
    for number in evicting:
        rope = rope_of(model, number)
        if rope is None:
            raise ValueError(
                f"positions='compact': layer {number} of {type(model).__module__} shows no rotary module,"
                " so its keys cannot be turned; use positions='absolute'"
            )
        found.append(rotary_of(*rope))
    return found
