"""Token cadence over a block: one eviction a token, each decided before the next token is looked at.

Rows keep the rotation they came with, so logits do not depend on what was evicted: a tile's logits come
from one product on the device. The evictions are a loop over tokens, which a kernel goes through for each
head (a GPU's, or the host's C loops); here, in NumPy for all heads at once, it is defined.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from vqx import kernels
from vqx.eviction import LARGEST, safe
from vqx.scorers import Fused, Held, Method, Over, Temperature
from vqx.state.rows import Rows, filled

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

TILE = 256
"""Tokens whose logits are held at once."""


class HostBlock(NamedTuple):
    """The attention of S queries over m rows, from logits at hand."""

    logits: Floats  # [B, H, G, S, m] scaled
    position: Ints  # [B, H, m]
    start: int  # position of the first query
    sinks: Floats | None = None  # [1, H, G, 1, 1]
    generated: int = 0

    @property
    def length(self) -> int:
        return int(self.logits.shape[3])

    def mass(
        self,
        *,
        decay: float = 1.0,
        itself: bool = True,
        temperature: Temperature | None = None,
        noise: Floats | None = None,
    ) -> Floats:
        """Of one query: ``decay`` has nothing to multiply."""
        logits = self.logits
        if noise is not None:
            logits = logits + noise[:, :, None, None]
        if temperature is not None:
            logits = logits / np.float32(temperature(self.generated))
        if not itself and self.start > 0:
            hidden = (self.position == self.start)[:, :, None, None]
            logits = np.where(hidden, np.float32(-1e30), logits)
        return _mean(self._softmax(logits))

    def sightings(self, *, itself: bool = True) -> Floats:
        seen = self.position < max(self.start + itself, 1)
        return seen.astype(np.float32)

    def weights(self, *, old: int = 0, fuse_logits: Fused | None = None, causal: bool = True) -> Floats:
        logits, seen = self.logits, self
        if fuse_logits:
            fuse = np.sum if fuse_logits == "sum" else np.max
            logits = fuse(logits, axis=2, keepdims=True)
            if self.sinks is not None:
                seen = self._replace(sinks=fuse(self.sinks, axis=2, keepdims=True))
        row = self.position[:, :, None, None]
        if old:
            hidden = row > self.start + self.length - 1 - old
            return np.where(hidden, 0.0, _softmax(np.where(hidden, -1e30, logits))).astype(np.float32)
        if not causal:
            return seen._softmax(logits)
        query = np.arange(self.start, self.start + self.length)[:, None]
        return seen._softmax(np.where(row > query, np.float32(-1e30), logits))

    def fused(
        self,
        *,
        group: Over = "mean",
        queries: Over = "mean",
        old: int = 0,
        fuse_logits: Fused | None = None,
        causal: bool = True,
    ) -> Floats:
        weights = self.weights(old=old, fuse_logits=fuse_logits, causal=causal)
        each = weights.max(axis=2) if group == "max" else weights.mean(axis=2)
        found: Floats = each.max(axis=2) if queries == "max" else each.mean(axis=2)
        return found

    def _softmax(self, logits: Floats) -> Floats:
        if self.sinks is None:
            return _softmax(logits)
        logits = np.ascontiguousarray(logits)
        top = np.maximum(logits.max(axis=-1, keepdims=True), self.sinks)
        weights: Floats = np.exp(logits - top)
        total: Floats = weights.sum(axis=-1, keepdims=True) + np.exp(self.sinks - top)
        return weights / total


def replay(
    method: Method,
    rows: Rows,
    queries: mx.array | None,
    *,
    new: int,
    start: int,
    scale: float,
    sinks: mx.array | None = None,
    across: Callable[[mx.array], mx.array] | None = None,
) -> tuple[mx.array, dict[str, mx.array]]:
    """Replay the ``new`` last rows one by one, the first of them at position ``start``.

    ``queries`` ``[B, H, G, q, D]`` are those of the new rows after up to ``window - 1`` earlier ones; None
    where the scorer reads none. ``across`` is the mean over the processes that share the layer's heads: a
    score that asks for it waits for the others at every token.
    Returns the slots kept ``[B, H, m]``, oldest row first, and the columns of those rows.
    """
    lanes, held = rows.position.shape[:2], rows.position.shape[2] - new
    earlier = 0 if queries is None else queries.shape[3] - new
    read = _reader(rows)
    slots = mx.broadcast_to(mx.arange(held, dtype=mx.int32), (*lanes, held))
    columns = {name: column[..., :held] for name, column in rows.columns.items()}
    for first in range(0, new, TILE):
        last = min(first + TILE, new)
        before = min(earlier + first, max(method.scorer.window - 1, 0))
        fresh = slice(held + first, held + last)
        arriving = mx.broadcast_to(mx.arange(fresh.start, fresh.stop, dtype=mx.int32), (*lanes, last - first))
        slots = mx.concatenate([slots, arriving], axis=2)
        columns = {
            name: mx.concatenate([column, rows.columns[name][..., fresh]], axis=2)
            for name, column in columns.items()
        }
        part = None if queries is None else queries[..., earlier + first - before : earlier + last, :]
        chosen, columns = _decided(
            method,
            functools.partial(_logits, part, rows, slots, scale),
            Candidates(
                mx.take_along_axis(rows.position, slots, axis=2), columns, last - first, start + first
            ),
            before,
            sinks,
            read,
            slots,
            across,
        )
        slots = mx.take_along_axis(slots, chosen, axis=2)
    return slots, columns


class Candidates(NamedTuple):
    """The rows of a tile: those held, then one for each token."""

    position: mx.array  # [B, H, m]
    columns: Mapping[str, mx.array]  # each [B, H, m]
    new: int
    start: int  # position of the first token


def _decided(
    method: Method,
    logits: Callable[[], mx.array],
    tile: Candidates,
    before: int,
    sinks: mx.array | None,
    read: Callable[[], tuple[Floats, Floats]],
    slots: mx.array,
    across: Callable[[mx.array], mx.array] | None,
) -> tuple[mx.array, dict[str, mx.array]]:
    """The candidates that stay, oldest first, and their columns: by a kernel, or token by token in NumPy."""
    position, columns, new, start = tile
    if across is None:
        found = kernels.replayed(
            method, logits, position, columns, new=new, earlier=before, start=start, sinks=sinks
        )
        if found is not None:
            return found[0], dict(found[1])
    lanes = position.shape[:2]
    known, learned = np.zeros((*lanes, 1, before + new, 0), np.float32), None
    if method.scorer.reads_queries:
        known = np.array(logits())
    if sinks is not None:
        learned = np.array(sinks.astype(mx.float32)).reshape(1, lanes[1], -1, 1, 1)
    block = HostBlock(known, np.array(position).astype(np.int64), start, learned)
    stats = {name: np.array(column) for name, column in columns.items()}
    mean = None if across is None else functools.partial(_across, across)
    of = functools.partial(_read, read, np.array(slots).astype(np.int64))
    chosen, stats = _tile(method, block, stats, before, of, mean)
    return mx.array(chosen.astype(np.int32)), {name: mx.array(column) for name, column in stats.items()}


def _tile(
    method: Method,
    tile: HostBlock,
    stats: Mapping[str, Floats],
    before: int,
    read: Callable[[Ints], tuple[Floats, Floats]],
    across: Callable[[Floats], Floats] | None,
) -> tuple[Ints, dict[str, Floats]]:
    """The rows of a tile arrive one by one; (candidates kept, their statistics), oldest first."""
    scorer, budget = method.scorer, method.budget
    new = tile.length - before
    held = tile.position.shape[2] - new
    chosen = np.broadcast_to(np.arange(held), (*tile.position.shape[:2], held))
    position, now = tile.position[..., :held], {name: c[..., :held] for name, c in stats.items()}
    free: Ints | None = None  # the slot of the row that went last
    for i in range(new):
        at, newest = held + i, tile.start + i
        arriving = {name: c[..., at : at + 1] for name, c in stats.items()}
        chosen = _put(chosen, free, np.full((*chosen.shape[:2], 1), at))
        position = _put(position, free, tile.position[..., at : at + 1])
        now = {name: _put(c, free, arriving[name]) for name, c in now.items()}
        if scorer.observe is not None:
            query = _queries(tile, before + i, before + i + 1, chosen)
            now = dict(scorer.observe(now, HostBlock(query, position, newest, tile.sinks)))
        if position.shape[2] > budget:
            last = None
            if scorer.window:
                first = max(0, before + i + 1 - scorer.window)
                query = _queries(tile, first, before + i + 1, chosen)
                last = HostBlock(query, position, newest - (before + i - first), tile.sinks)
            held_rows = Held(now, position, newest, functools.partial(read, chosen), last, across=across)
            score = np.broadcast_to(scorer.score(held_rows), position.shape)
            free = _victim(score, position, newest, method)
    if free is not None:
        position = position.copy()
        np.put_along_axis(position, free, np.iinfo(np.int64).max, axis=2)
    order = np.argsort(position, axis=2)[..., : min(position.shape[2], budget)]
    return _take(chosen, order), {name: _take(c, order) for name, c in now.items()}


def _victim(score: Floats, position: Ints, newest: int, method: Method) -> Ints:
    """The slot ``[B, H, 1]`` of the lowest unprotected score, of the oldest row among equals."""
    score = np.where(np.isnan(score), -np.inf, np.minimum(score, LARGEST))
    score = np.where(safe(method, position, newest), np.inf, score)
    lowest = score == score.min(axis=2, keepdims=True)
    oldest: Ints = np.argmin(np.where(lowest, position, np.iinfo(np.int64).max), axis=2, keepdims=True)
    return oldest


def _logits(queries: mx.array | None, rows: Rows, slots: mx.array, scale: float) -> mx.array:
    """Scaled logits ``[B, H, G, q, m]`` of queries against the rows at ``slots``."""
    if queries is None:
        raise ValueError("token cadence needs the queries of the last forward, and none were shown")
    keys = mx.take_along_axis(filled(rows)[0], slots[..., None], axis=2).astype(mx.float32)
    batch, heads, group, length, width = queries.shape
    asked = (queries.astype(mx.float32) * scale).reshape(batch, heads, group * length, width)
    return (asked @ keys.swapaxes(-1, -2)).reshape(batch, heads, group, length, -1)


def _reader(rows: Rows) -> Callable[[], tuple[Floats, Floats]]:
    """Keys and values on the host, copied when a score first asks for them."""

    @functools.cache
    def read() -> tuple[Floats, Floats]:
        keys, values = filled(rows)
        return np.array(keys.astype(mx.float32)), np.array(values.astype(mx.float32))

    return read


def _read(read: Callable[[], tuple[Floats, Floats]], slots: Ints, chosen: Ints) -> tuple[Floats, Floats]:
    """Keys and values of the chosen candidates of a tile."""
    at = _take(slots, chosen)[..., None]
    keys, values = read()
    return np.take_along_axis(keys, at, axis=2), np.take_along_axis(values, at, axis=2)


def _across(across: Callable[[mx.array], mx.array], score: Floats) -> Floats:
    return np.array(across(mx.array(score)))


def _queries(tile: HostBlock, first: int, last: int, chosen: Ints) -> Floats:
    """Logits of queries ``first`` to ``last`` against the chosen candidates: ``[B, H, G, q, m]``."""
    return np.take_along_axis(tile.logits[:, :, :, first:last], chosen[:, :, None, None], axis=4)


def _put(column: npt.NDArray[Any], free: Ints | None, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Append one row, or write it over the free one."""
    if free is None:
        return np.concatenate([column, value], axis=2)
    column = column.copy()
    np.put_along_axis(column, free, value, axis=2)
    return column


def _take(column: npt.NDArray[Any], slots: Ints) -> npt.NDArray[Any]:
    return np.take_along_axis(column, slots, axis=2)


def _mean(weights: Floats) -> Floats:
    """Sum over queries, mean over the group: ``[B, H, G, S, m]`` to ``[B, H, m]``."""
    mean: Floats = weights.sum(axis=3).mean(axis=2)
    return mean


def _softmax(logits: Floats) -> Floats:
    logits = np.ascontiguousarray(logits)  # so that no lane beside changes the order of additions
    weights: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights
