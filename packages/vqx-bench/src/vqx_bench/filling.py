"""Caches full of random rows, made without a forward of the model: a step takes as long whatever they say."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import mlx.core as mx
from vqx import EvictingCache
from vqx.host.caches import own_caches
from vqx.host.queries import queries_of

CHUNK = 2048
HEEDED = 64
"""Tokens at the end of a text whose queries scorers see."""


class Sizes(NamedTuple):
    """Shapes of one layer's attention."""

    heads: int  # key-value heads
    group: int  # query heads to each
    width: int
    value_width: int
    dtype: mx.Dtype


class Rows(NamedTuple):
    """Random tokens of one layer."""

    queries: mx.array  # [B, H * G, S, D]
    keys: mx.array  # [B, H, S, D]
    values: mx.array  # [B, H, S, Dv]


def sizes_of(model: Any) -> list[Sizes]:
    """The shapes of every layer.

    Raises:
        ValueError: a model with layers that hold no plain key-value cache.
    """
    asked, caches = queries_of(model, [1, 2]), own_caches(model)
    if len(asked) != len(caches):
        raise ValueError(
            f"{type(model).__module__}: {len(caches) - len(asked)} of its layers hold no plain key-value"
            " cache, and a benchmark of caches wants all to"
        )
    model(mx.array([[1, 2]]), cache=caches)
    found = []
    for number, cache in enumerate(caches):
        heads, group, _, width = asked[number].shape
        keys, values = cache.keys_and_values()
        found.append(Sizes(heads, group, width, values.shape[3], keys.dtype))
    return found


def drawn(size: Sizes, batch: int, length: int, seed: int = 0) -> Rows:
    """Random tokens."""
    shapes = ((size.heads * size.group, size.width), (size.heads, size.width), (size.heads, size.value_width))
    return Rows(
        *(
            mx.random.normal((batch, heads, length, width), size.dtype, key=mx.random.key(3 * seed + number))
            for number, (heads, width) in enumerate(shapes)
        )
    )


def fill(caches: Sequence[Any], sizes: Sequence[Sizes], batch: int, tokens: int) -> None:
    """Let caches read a prompt of random rows, in mlx-lm's chunks.

    Scorers see the queries of its end alone: of all, they would take longer than what is timed.
    """
    before = max(tokens - HEEDED, 0)
    chunks = [min(CHUNK, before - first) for first in range(0, before, CHUNK)]
    for number, length in enumerate([*chunks, tokens - before]):
        rows = {size: drawn(size, batch, length, number) for size in set(sizes)}
        for cache, size in zip(caches, sizes, strict=True):
            with nullcontext() if number == len(chunks) else _unheeded(cache):
                update(cache, rows[size])
        mx.eval([cache.state for cache in caches])


@contextmanager
def _unheeded(cache: Any) -> Iterator[None]:
    """No statistics are kept of what a cache reads within."""
    if not isinstance(cache, EvictingCache):
        yield
        return
    plan = cache.plan
    scorer = plan.method.scorer._replace(observe=None)
    cache.plan = plan._replace(method=plan.method._replace(scorer=scorer))
    yield
    cache.plan = plan


def update(cache: Any, rows: Rows) -> tuple[mx.array, mx.array]:
    """One forward as the cache sees it; what attention reads."""
    mask = "causal" if rows.keys.shape[2] > 1 else None
    keys, values = cache.update_and_fetch(rows.keys, rows.values)
    if hasattr(cache, "plan"):  # a cache of vqx, which the model's attention shows its queries
        cache.observe(rows.queries, keys, rows.keys.shape[3] ** -0.5, mask, None)
    return keys, values
