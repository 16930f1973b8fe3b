"""The attention hooks: let a cache see the model's own queries.

``mlx_lm.models.base.scaled_dot_product_attention`` is handed the cache; replacing that name in the module
of a model's attention shows the true queries, scale, mask and learned sinks. Other caches pass through.
Where a model writes its attention out, the two functions of ``mlx.core`` in which attention ends show the
cache that was updated last what they are handed.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import base

from vqx import kernels
from vqx.host.weighing import weighed, weighs
from vqx.state.batch import EvictingBatch
from vqx.state.cache import EvictingCache
from vqx.state.reversible import ReversibleCache
from vqx.state.rows import ONCE

NAME = "scaled_dot_product_attention"

_last = threading.local()


def watch_attention(model: nn.Module) -> None:
    """Install the hook in the modules of the model's classes."""
    for module in modules_of(model):
        attend = getattr(module, NAME, None)
        if attend is not None and not getattr(attend, "shows_queries_to_vqx", False):
            setattr(module, NAME, _watched(attend))


def watch_arithmetic(model: nn.Module) -> None:
    """Let the modules of the model's classes use an ``mx`` whose attention and softmax show what they get."""
    for module in modules_of(model):
        if getattr(module, "mx", None) is mx:
            fast = Shown(mx.fast, scaled_dot_product_attention=_attention)
            module.mx = Shown(mx, fast=fast, softmax=_softmax)  # type: ignore[attr-defined]


def modules_of(model: nn.Module) -> list[ModuleType]:
    """The Python modules in which the model's classes are defined, mlx-lm's base and mlx's own left out."""
    names = {type(part).__module__ for _, part in model.named_modules()}
    names = {name for name in names if name != base.__name__ and not name.startswith("mlx.")}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def expect(cache: EvictingCache | EvictingBatch) -> None:
    """From its update on, the attention that a model writes out is this cache's."""
    _last.cache = weakref.ref(cache)


def expected(length: int, rows: int) -> EvictingCache | EvictingBatch | None:
    """The cache updated last in this thread, if it waits for ``length`` queries over so many rows."""
    found = _last.cache() if hasattr(_last, "cache") else None
    return found if found is not None and found.awaits(length, rows) else None


class Shown:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _watched(attend: Callable[..., mx.array]) -> Callable[..., mx.array]:
    plain = attend is base.scaled_dot_product_attention

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
        ours = isinstance(cache, (EvictingCache, EvictingBatch))
        weighing = ours and weighs(queries, keys, values)
        if ours and not weighing and cache.goes_on(queries, keys, scale, sinks, mask):
            if plain and mask is None:
                return _unmasked(cache, queries, keys, values, scale, sinks)
            return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        if not isinstance(cache, (EvictingCache, EvictingBatch, ReversibleCache)):
            return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        whole = weighing and sinks is None and plain
        if whole and not isinstance(cache, ReversibleCache):
            takes, grouped = cache.takes(keys, mask), _after_eviction(cache, queries, mask)
            if takes or grouped:
                ((_, _, mask),) = cache.masks(mask, queries.shape[1], queries.shape[2])
                found, weights = weighed(queries, keys, values, scale, mask, grouped=grouped)
                cache.observe(queries, keys, scale, mask, sinks, weights if takes else None)
                return _tied(found, cache)
        cache.observe(queries, keys, scale, mask, sinks)
        if mask is None and not _own_masks(cache):
            if plain:
                return _tied(_unmasked(cache, queries, keys, values, scale, sinks), cache)
            found = attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
            return _tied(found, cache)

        def masked(queries: mx.array, mask: Any) -> mx.array:
            return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

        return _tied(_in_tiles(cache, masked, queries, mask), cache)

    attention.shows_queries_to_vqx = True  # type: ignore[attr-defined]
    return attention


def _own_masks(cache: EvictingCache | EvictingBatch | ReversibleCache) -> bool:
    """Whether attention may need other masks than the host's."""
    if isinstance(cache, EvictingBatch):
        return not cache.under_way
    return not isinstance(cache, EvictingCache) or cache.in_lanes


def _unmasked(
    cache: EvictingCache | EvictingBatch,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    sinks: mx.array | None,
) -> mx.array:
    """What mlx-lm's own function asks of MLX for a cache without bits of mlx-lm's; by a kernel where much is
    left after rows went. Before that it shall be mlx-lm's bit for bit."""
    if keys.size >= ONCE and sinks is None and cache.gone:
        found = kernels.attended(queries, keys, values, scale)
        if found is not None:
            return found
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, sinks=sinks)


def _after_eviction(cache: EvictingCache | EvictingBatch, queries: mx.array, mask: Any) -> bool:
    """Whether a token reads what is left after others went: no cache of mlx-lm gives its attention."""
    own = isinstance(cache, EvictingBatch) and isinstance(mask, mx.array) and mask.dtype == mx.bool_
    return queries.shape[2] == 1 and (mask is None or own) and cache.evicted


def _attention(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None, sinks: Any = None, **more: Any
) -> mx.array:
    def masked(q: mx.array, mask: Any) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, **more)

    cache = expected(q.shape[2], k.shape[2])
    if cache is None:
        return masked(q, mask)
    cache.observe(q, k, scale, mask, sinks)
    return _tied(_in_tiles(cache, masked, q, mask), cache)


def _tied(found: mx.array, cache: EvictingCache | EvictingBatch | ReversibleCache) -> mx.array:
    """What attention found, evaluated with all that the cache learnt of it."""
    loose = cache.loose()
    return mx.depends([found], loose)[0] if loose else found


def _in_tiles(
    cache: EvictingCache | EvictingBatch | ReversibleCache,
    attend: Callable[[mx.array, Any], mx.array],
    queries: mx.array,
    mask: Any,
) -> mx.array:
    """Attention under the cache's own masks, where it has any."""
    tiles = cache.masks(mask, queries.shape[1], queries.shape[2])
    if len(tiles) == 1:
        return attend(queries, tiles[0][2])
    return mx.concatenate([attend(queries[:, :, i:j], part) for i, j, part in tiles], axis=2)


def _softmax(a: mx.array, *arguments: Any, **options: Any) -> mx.array:
    cache = expected(*a.shape[-2:]) if a.ndim >= 4 else None
    if cache is not None:
        # scaled, capped and masked already: queries and keys have nothing to add to these numbers
        logits = a.reshape(a.shape[0], -1, *a.shape[-2:])
        queries, keys = mx.zeros((*logits.shape[:3], 1)), mx.zeros((*cache.position.shape, 1))
        cache.observe(queries, keys, 1.0, logits, None)
        a = _tied(a, cache)
    return mx.softmax(a, *arguments, **options)
