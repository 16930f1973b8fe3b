"""Seeded streams of queries, keys and values, each with one property that finds out careless methods.

They are drawn on the host, so a name, a seed and a shape give the same numbers on every device.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Shape(NamedTuple):
    """Sizes of a stream; at least three times as long as the budget that it is to overflow."""

    length: int = 64
    batch: int = 2
    heads: int = 2
    group: int = 2  # query heads that share one key-value head
    width: int = 16  # a power of four makes 1 / sqrt(D) exact
    value_width: int = 6

    def draw(self, rng: np.random.Generator) -> Floats:
        """Independent normal keys ``[B, H, S, D]``."""
        return rng.normal(size=(self.batch, self.heads, self.length, self.width)).astype(np.float32)


class Stream(NamedTuple):
    """What a model's layer would offer, token after token."""

    queries: mx.array  # [B, H * G, S, D]
    keys: mx.array  # [B, H, S, D]
    values: mx.array  # [B, H, S, Dv]

    @property
    def length(self) -> int:
        return int(self.keys.shape[2])

    def cut(self, start: int, stop: int) -> "Stream":
        """Tokens ``start`` to ``stop - 1``."""
        return Stream(*(array[:, :, start:stop] for array in self))

    def astype(self, dtype: mx.Dtype) -> "Stream":
        return Stream(*(array.astype(dtype) for array in self))

    def lanes(self, batch: slice = slice(None), heads: slice = slice(None)) -> "Stream":
        """Some batch rows and key-value heads, each with its query heads."""
        group = self.queries.shape[1] // self.keys.shape[1]
        first, last, _ = heads.indices(self.keys.shape[1])
        queries = self.queries[batch, first * group : last * group]
        return Stream(queries, self.keys[batch, heads], self.values[batch, heads])


def gaussian(rng: np.random.Generator, shape: Shape) -> Floats:
    """Independent normal keys: the control."""
    return shape.draw(rng)


def topics(rng: np.random.Generator, shape: Shape) -> Floats:
    """Each third of the stream lives in a plane of its own: rows that mattered cease to matter."""
    planes = 0.5 * rng.normal(size=(3, shape.batch, shape.heads, 2, shape.width))
    spots = rng.normal(size=(shape.batch, shape.heads, shape.length, 2))
    thirds = np.arange(shape.length) * 3 // shape.length
    keys = np.einsum("bhsr,sbhrd->bhsd", spots, planes[thirds])
    return np.asarray(keys + 0.1 * shape.draw(rng), np.float32)


def duplicates(rng: np.random.Generator, shape: Shape) -> Floats:
    """Five different keys, again and again, in quarters, so that products are exact and equal rows tie."""
    few = shape._replace(length=5).draw(rng)
    chosen = rng.integers(5, size=(shape.batch, shape.heads, shape.length, 1))
    return np.round(4 * np.take_along_axis(few, chosen, axis=2)) / np.float32(4)


def tiny_newest(rng: np.random.Generator, shape: Shape) -> Floats:
    """Keys point one way and every fourth, the last one too, is tiny: each as a query reads itself least."""
    way = rng.normal(size=(shape.batch, shape.heads, 1, shape.width))
    way /= np.linalg.norm(way, axis=-1, keepdims=True)
    tiny = (np.arange(shape.length)[::-1] % 4 == 0)[:, None]
    long = rng.uniform(2, 4, size=(shape.batch, shape.heads, shape.length, 1))
    return (np.where(tiny, 0.25, long) * way + np.where(tiny, 0.0, 0.1) * shape.draw(rng)).astype(np.float32)


def small_integers(rng: np.random.Generator, shape: Shape) -> Floats:
    """Keys of -1, 0 and 1: products are exact and few, so that different rows tie as well."""
    size = (shape.batch, shape.heads, shape.length, shape.width)
    keys = rng.integers(-1, 2, size=size) * (rng.random(size) < 0.2)
    return keys.astype(np.float32)


def dominant_sink(rng: np.random.Generator, shape: Shape) -> Floats:
    """The first key draws nine tenths of all attention: the other rows differ by little."""
    keys = 0.5 * shape.draw(rng)
    keys[..., 0] = 2.0
    keys[:, :, 0, 0] = 10.0
    return keys


STREAMS: Mapping[str, Callable[[np.random.Generator, Shape], Floats]] = {
    "gaussian": gaussian,
    "topics": topics,
    "duplicates": duplicates,
    "tiny newest": tiny_newest,
    "small integers": small_integers,
    "dominant sink": dominant_sink,
}
"""Keys by name; :func:`stream` adds queries and values."""

EXACT = ("duplicates", "small integers")
"""Streams whose float32 logits are exact whatever computes them; a tie there is a tie on every device."""


def stream(name: str, seed: int = 0, shape: Shape = Shape()) -> Stream:  # noqa: B008
    """The stream of that name: each query is drawn around a key of its past (exact streams: is that key)."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    keys = STREAMS[name](rng, shape)
    upto = np.arange(1, shape.length + 1)
    past = rng.integers(upto, size=(shape.batch, shape.heads, shape.group, shape.length))
    queries = np.take_along_axis(keys[:, :, None], past[..., None], axis=3)
    if name not in EXACT:
        queries = queries + rng.normal(scale=0.5, size=queries.shape).astype(np.float32)
    values = rng.normal(size=(shape.batch, shape.heads, shape.length, shape.value_width))
    return Stream(
        mx.array(queries.reshape(shape.batch, -1, shape.length, shape.width)),
        mx.array(keys),
        mx.array(values.astype(np.float32)),
    )
