"""Caches of which tokens can be taken back, for models whose attention lets them mask their rows."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from vqx.host.watching import watch_attention
from vqx.state.cache import EvictingCache
from vqx.state.reversible import ReversibleCache
from vqx.state.turn import Turn


def reversible(model: nn.Module, fresh: Callable[[], list[Any]], undo: int) -> Callable[[], list[Any]]:
    """The caches of ``fresh``, with ``undo`` tokens that can be taken back, tried on the model.

    Raises:
        ValueError: layers whose caches take nothing back, or that mask rows in their own way; a method
            that cannot.
    """

    def wrapped() -> list[Any]:
        caches = fresh()
        for cache in caches:
            if not isinstance(cache, EvictingCache):
                raise ValueError(
                    f"undo={undo}: {type(model).__module__} has layers with a {type(cache).__name__}, of"
                    " which no token can be taken back; make the caches without undo"
                )
            cache.updated = cache.turn = None  # what the model attends to are not this cache's rows alone
        both, turn = [ReversibleCache(cache, undo) for cache in caches], Turn()
        for reversible in both:
            reversible.turn = turn
            turn.join(reversible)
        return both

    watch_attention(model)
    for length in (2, 1):
        caches = wrapped()
        model(mx.ones((1, length), mx.int32), cache=caches)
        for cache in caches:
            if cache.unseen:
                raise ValueError(
                    f"undo={undo}: {type(model).__module__} {cache.unseen} in layer {cache.number}, so that"
                    " several tokens cannot be kept from seeing what one of them evicts; make the caches"
                    " without undo"
                )
    return wrapped
