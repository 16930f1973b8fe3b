"""Feed a stream to a cache as a model would, and record what the cache holds."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from vqx.build import chain_of, methods_for
from vqx.options import Options, Queries
from vqx.scorers import Method
from vqx.spec import LayerInfo
from vqx.state.cache import EvictingCache
from vqx.state.positions import rotary_of
from vqx.state.rows import filled
from vqx.state.settling import settle
from vqx.testing.streams import Shape, Stream, stream

BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


def cache_of(method: str, engine: Options, **options: Any) -> EvictingCache:
    """The cache of one layer, number 0; ``engine.queries`` must be set."""
    built = method_of(method, engine.queries or "model", **options)
    width = Shape().width
    turns = built.scorer.rotary or engine.positions == "compact"
    rotary = rotary_of(nn.RoPE(width), width) if turns else None
    return EvictingCache(built, engine, rotary=rotary)


def method_of(method: str, queries: Queries = "model", **options: Any) -> Method:
    """The method of one layer, number 0, whose attention module is :func:`attending`."""
    return methods_for(chain_of(method), options, [LayerInfo(0, queries, attending())])[0]


def attending(shape: Shape | None = None, hidden: int = 8) -> nn.Module:
    """An attention module with nothing but an output projection, for streams of the shape given."""
    _, _, kv_heads, group, _, width = shape or Shape()
    heads = kv_heads * group
    drawn = np.random.default_rng(0).normal(size=(hidden, heads * width)).astype(np.float32)
    attention = nn.Module()
    attention.o_proj = nn.Linear(heads * width, hidden, bias=False)
    attention.o_proj.weight = mx.array(drawn)
    return attention


def forward(cache: EvictingCache, part: Stream) -> tuple[mx.array, mx.array]:
    """One forward, with the model's own queries where the cache reads them: what attention gets."""
    mask = cache.make_mask(part.length)
    keys, values = cache.update_and_fetch(part.keys, part.values)
    if cache.plan.options.queries == "model":
        cache.observe(part.queries, keys, part.keys.shape[-1] ** -0.5, mask, None)
    return keys, values


def feed(cache: EvictingCache, tokens: Stream, lengths: Iterable[int], start: int = 0) -> EvictingCache:
    """Forwards of these lengths from token ``start`` on."""
    for first, last in _spans(lengths, start):
        forward(cache, tokens.cut(first, last))
    return cache


class Kept(NamedTuple):
    """The rows that remain for the next forward, oldest first.

    Where heads share a budget they stand in one lane, ``[B, 1, N]``, head by head, with the column ``head``.
    """

    keys: mx.array  # [B, H, n, D]
    values: mx.array  # [B, H, n, Dv]
    position: npt.NDArray[np.int32]  # [B, H, n]
    columns: Mapping[str, npt.NDArray[Any]]  # each [B, H, n]


def remaining(cache: EvictingCache) -> Kept:
    """What the next forward will find; the cache itself is left as it is."""
    if cache.layer is None:
        raise ValueError("the cache is empty: feed it first")
    # room for two rows: with room for one, settling names a slot instead of dropping its row
    rows = settle(cache.plan, cache.layer, room=2)[0].rows
    order = mx.argsort(rows.columns.get("head", 0) * cache.tokens_seen + rows.position, axis=2)
    keys, values = (mx.take_along_axis(array, order[..., None], axis=2) for array in filled(rows))
    position = np.array(mx.take_along_axis(rows.position, order, axis=2))
    columns = {name: np.array(mx.take_along_axis(c, order, axis=2)) for name, c in rows.columns.items()}
    return Kept(keys, values, position, columns)


def offered(rows: mx.array, position: Any, head: Any = None) -> mx.array:
    """Of a stream's keys or values ``[B, H, S, D]`` those at ``position``, ``[B, H, n, D]`` or a lane's."""
    batch, heads, length, width = rows.shape
    head = mx.arange(heads)[:, None] if head is None else mx.array(head)
    place = (head * length + mx.array(position)).reshape(batch, -1, 1)
    found = mx.take_along_axis(rows.reshape(batch, heads * length, width), place, axis=1)
    return found.reshape(*position.shape, width)


def lanes(cache: EvictingCache) -> tuple[npt.NDArray[np.int32], ...]:
    """The positions that each head of each sequence holds, as stored."""
    layer = cache.layer
    if layer is None:
        raise ValueError("the cache is empty: feed it first")
    position = np.array(layer.rows.position)
    if layer.heads == 1:
        return (*position.reshape(-1, position.shape[2]),)
    head = np.array(layer.rows.columns["head"])
    pairs = zip(position[:, 0], head[:, 0], strict=True)
    return tuple(row[of == each] for row, of in pairs for each in range(layer.heads))


def count(lanes: Sequence[Any]) -> float:
    """Rows per head."""
    return sum(map(len, lanes)) / len(lanes)


def same_bits(one: mx.array, other: mx.array) -> bool:
    """Equal shapes, types and bits (so that NaN equals NaN)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = BITS[one.dtype.size]
    return bool(mx.array_equal(one.view(bits), other.view(bits)).item())


class Step(NamedTuple):
    """One forward of tokens ``start`` to ``stop - 1``."""

    start: int
    stop: int
    lanes: tuple[npt.NDArray[np.int32], ...]  # positions held during it, as stored, of every head
    strays: int  # rows that are not, bit for bit, what was offered there (merged values left out)
    tokens_kept: int  # what the cache says remains after it
    offset: int

    @property
    def kept(self) -> list[npt.NDArray[np.int32]]:
        """Positions kept from before, oldest first, of every head of every sequence."""
        return [np.sort(lane)[: len(lane) - (self.stop - self.start)] for lane in self.lanes]


class Walk(NamedTuple):
    """A whole stream through a cache, forward by forward."""

    method: Method
    steps: tuple[Step, ...]


PROMPT = (7, 20, 1, 13)
"""Chunks of a walk, one of them larger than the law's budget; single tokens follow."""


@functools.lru_cache(maxsize=1024)
def walk(method: str, engine: Options, setting: tuple[tuple[str, Any], ...], name: str) -> Walk:
    """The stream called ``name`` under a method's setting: the prompt in chunks, then token by token."""
    tokens, cache = stream(name), cache_of(method, engine, **dict(setting))
    lengths = [*PROMPT, *[1] * (tokens.length - sum(PROMPT))]
    steps = []
    for first, last in _spans(lengths, 0):
        held = forward(cache, tokens.cut(first, last))
        head = None if cache.layer is None else cache.layer.rows.columns.get("head")
        unchanged = (
            zip(held, tokens[1:], strict=True)
            if cache.plan.method.merge is None
            else [(held[0], tokens.keys)]
        )
        wrong = mx.zeros(cache.position.shape, mx.bool_)
        for rows, stored in unchanged:
            wrong |= mx.any(rows != offered(stored, cache.position, head), axis=-1)
        steps.append(Step(first, last, lanes(cache), int(wrong.sum()), cache.tokens_kept, cache.offset))
    return Walk(cache.plan.method, tuple(steps))


def _spans(lengths: Iterable[int], start: int) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(itertools.accumulate(lengths, initial=start))
