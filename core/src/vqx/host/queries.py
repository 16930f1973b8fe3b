"""The queries that a model asks of a text: for methods that are calibrated once, before they are used."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from vqx.host.layers import caches_with
from vqx.host.watching import watch_attention
from vqx.options import Options
from vqx.scorers import WHOLE, Method, Scorer
from vqx.state.cache import EvictingCache


def queries_of(model: nn.Module, tokens: Sequence[int]) -> dict[int, mx.array]:
    """Read ``tokens`` in one forward with nothing evicted.

    Returns:
        Of each layer that holds keys and values, by its number, the queries as attention gets them:
        ``[H, G, S, D]``, G query heads to each head of keys.

    Raises:
        ValueError: no tokens, or a model whose queries cannot be seen.
    """
    if not tokens:
        raise ValueError("no tokens to read: give a text")
    watch_attention(model)
    remember = Method(Scorer(score=lambda held: 0.0, window=len(tokens)), WHOLE)
    options = Options(queries="model")
    caches = caches_with(model, lambda number: EvictingCache(remember, options, number=number))
    model(mx.array([tokens]), cache=caches)
    found = {}
    for cache in caches:
        if isinstance(cache, EvictingCache):
            seen = None if cache.layer is None or cache.unseen else cache.layer.seen
            if seen is None or seen.logits:
                why = cache.unseen or "makes its keys from the rows held"
                raise ValueError(
                    f"layer {cache.number} of {type(model).__module__} {why}: no queries to read"
                )
            found[cache.number] = seen.queries[0]
    return found
