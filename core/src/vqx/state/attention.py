"""The attention of a block of queries on the device, tile by tile.

MLX's fused attention returns no weights, so scoring reads the keys once more; a tile bounds what is held.
"""

from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from vqx import kernels
from vqx.scorers import Fused, Over, Temperature
from vqx.state.lanes import ELSEWHERE

TILE = 2**23
"""Logits held at once, in numbers (32 MiB of float32)."""

MORE = 4
"""Times as many on CUDA, where to ask for a small tile takes longer than to work on it."""

HIDDEN = -1e30

MOST: ContextVar[int | None] = ContextVar("MOST", default=None)
"""Tiles taken of a block, the last ones; None: all, except where only the memory that they take is asked."""


class Known(NamedTuple):
    """What attention itself gave to each row."""

    mass: mx.array
    """The weights of all queries of a block, each the mean over its group, summed: ``[B, H, n]`` float32."""
    decay: float | None = None
    """What multiplied the sum at each later query; None: there is one query."""


class Block(NamedTuple):
    """S queries of one layer against its n rows."""

    queries: (
        mx.array
    )  # [B, H, G, S, D], G query heads share one row; without keys their logits [B, H, G, S, n]
    keys: mx.array | None  # [B, H, n, D], or more heads where attention makes them from the rows held
    position: mx.array  # [B, H, n] int32
    start: int | mx.array  # position of the first query; [B, 1, 1] where the sequences of a batch differ
    scale: float
    mask: Any = "causal"  # "causal": a query sees positions up to its own; None: everything; or an array
    sinks: mx.array | None = None  # [H * G] learned logits that join the softmax's denominator
    generated: int | tuple[int, ...] = 0  # tokens generated before the first query; 0 in a prompt
    decoded: bool = False  # the queries are of tokens generated one by one, not of a prompt
    elsewhere: bool = False  # rows at the position ELSEWHERE are another head's
    later: int = 0  # queries of the same window that come after this part of it
    ordered: bool = False  # the queries' own rows are the last ones, in their order
    known: "Known | None" = None  # of queries of tokens generated one by one, where attention said it
    given: mx.array | None = None  # the weights [B, H, G, S, n], where attention said them

    @property
    def length(self) -> int:
        return self.queries.shape[3]

    def mass(
        self,
        *,
        decay: float = 1.0,
        itself: bool = True,
        temperature: Temperature | None = None,
        noise: mx.array | None = None,
    ) -> mx.array:
        if self.length > 1:
            found = kernels.prompt_mass(
                self, itself=itself, decay=decay, temperature=temperature, noise=noise
            )
            if found is not None:
                return found
        if noise is None and temperature is None:
            found = kernels.gained(self, itself=itself, decay=decay)
            if found is not None:
                return found
            if self.known is not None and itself and self.known.decay in (decay, None):
                return self.known.mass
        if self.given is not None and itself and (temperature is None or self.divisor(temperature) == 1.0):
            return _summed(self.given, decay, noise)
        total = mx.zeros(self.position.shape, mx.float32)
        wide = self if self.keys is None else self._replace(keys=self.keys.astype(mx.float32))
        n = self.position.shape[2]
        causal = isinstance(self.mask, str) and self.keys is not None
        ordered = self.ordered and causal and not self.later and not self.elsewhere
        for first, last in self._tiles():
            # the rows that came after the tile's last query are hidden from all of it
            seen = n - (self.length - last) if ordered else n
            part = wide._first(seen)
            drawn = noise if noise is None else noise[..., :seen]
            logits, gained = part._logits(first, last), None
            if noise is None and temperature is None:
                gained = kernels.mass(part, logits, first, last, itself=itself, decay=decay)
            if gained is None:
                weights = part._softmax(logits, first, last, itself, temperature, drawn)
                if decay != 1.0:
                    age = np.arange(self.length - 1 - first, self.length - 1 - last, -1)
                    weights = weights * mx.array((decay**age).astype(np.float32))[:, None]
                gained = mx.mean(mx.sum(weights, axis=3), axis=2)
            total = total + (gained if seen == n else mx.pad(gained, [(0, 0), (0, 0), (0, n - seen)]))
        return total

    def sightings(self, *, itself: bool = True) -> mx.array:
        return kernels.sightings(self.position, self.start, self.length, itself=itself)

    def weights(self, *, old: int = 0, fuse_logits: Fused | None = None, causal: bool = True) -> mx.array:
        logits, sinks = self._logits(0, self.length), self.sinks
        if fuse_logits:
            fuse = mx.sum if fuse_logits == "sum" else mx.max
            if sinks is not None:
                sinks = fuse(sinks.astype(mx.float32).reshape(logits.shape[1:3]), axis=1)
            logits = fuse(logits, axis=2, keepdims=True)
        if old:
            # of the old rows alone: a learned sink is no row, and takes no share from any query
            newest = self.start + self.length - 1 + self.later
            hidden = (self.position > newest - old)[:, :, None, None]
            return mx.where(hidden, 0.0, mx.softmax(mx.where(hidden, HIDDEN, logits), axis=-1))
        seen = self._replace(mask=self.mask if causal else None, sinks=sinks)
        return seen._softmax(logits, 0, self.length, True, None, None)

    def fused(
        self,
        *,
        group: Over = "mean",
        queries: Over = "mean",
        old: int = 0,
        fuse_logits: Fused | None = None,
        causal: bool = True,
    ) -> mx.array:
        how: Any = {"old": old, "causal": causal, "group": group, "queries": queries}
        served = kernels.averaged(self, fuse_logits=fuse_logits, **how)
        if served is None:
            served = kernels.gained(self, fuse_logits=fuse_logits, **how)
        if served is not None:
            return served
        plain = group == "mean" and causal and not old and not fuse_logits
        if self.known is not None and self.known.decay is None and plain:
            return self.known.mass
        found = mx.zeros(self.position.shape, mx.float32)
        over: Any = "max" if queries == "max" else "sum"
        for first, last in self._tiles():
            each = None
            if self.length > 1 and causal and not old and not fuse_logits:
                logits = self._logits(first, last)
                each = kernels.mass(self, logits, first, last, group=group, queries=over)
            if each is None:
                weights = self._part(first, last).weights(old=old, fuse_logits=fuse_logits, causal=causal)
                each = mx.max(weights, axis=2) if group == "max" else mx.mean(weights, axis=2)
                each = mx.max(each, axis=2) if queries == "max" else mx.sum(each, axis=2)
            found = mx.maximum(found, each) if queries == "max" else found + each
        return found if queries == "max" else found / self.length

    def _first(self, rows: int) -> "Block":
        """The same queries against the first rows alone."""
        if rows == self.position.shape[2] or self.keys is None:
            return self
        return self._replace(keys=self.keys[:, :, :rows], position=self.position[:, :, :rows])

    def _part(self, first: int, last: int) -> "Block":
        """The queries ``first`` to ``last`` alone."""
        if (first, last) == (0, self.length):
            return self
        whole = isinstance(self.mask, mx.array) and self.mask.shape[-2] > 1
        return self._replace(
            queries=self.queries[..., first:last, :],
            start=self.start + first,
            mask=self.mask[..., first:last, :] if whole else self.mask,
            later=self.length - last,
        )

    def shown(self, count: int) -> mx.array:
        """The last ``count`` queries' logits as a softmax takes them, ``HIDDEN`` where a row is not seen."""
        first = max(self.length - count, 0)
        logits, visible = self._masked(self._logits(first, self.length), first, self.length, True)
        return logits if visible is None else mx.where(visible, logits, HIDDEN)

    def _tiles(self) -> list[tuple[int, int]]:
        batch, heads, group, length, _ = self.queries.shape
        tile = TILE * MORE if mx.cuda.is_available() and mx.default_device() == mx.gpu else TILE
        step = max(1, tile // (batch * heads * group * self.position.shape[2]))
        tiles = [(i, min(i + step, length)) for i in range(0, length, step)]
        return tiles[-(MOST.get() or len(tiles)) :]

    def _logits(self, first: int, last: int) -> mx.array:
        """Scaled logits of queries ``first`` to ``last``: ``[B, H, G, s, n]`` float32."""
        queries = self.queries[..., first:last, :]
        if self.keys is None:
            return queries
        batch, heads, group, _, width = self.queries.shape
        rows = (queries.astype(mx.float32) * self.scale).reshape(batch, self.keys.shape[1], -1, width)
        logits = rows @ self.keys.astype(mx.float32).swapaxes(-1, -2)
        logits = logits.reshape(batch, heads, group, last - first, -1)
        if self.elsewhere:
            logits = mx.where((self.position == ELSEWHERE)[:, :, None, None], HIDDEN, logits)
        return logits

    def _softmax(
        self, logits: mx.array, first: int, last: int, itself: bool, temperature: Any, noise: Any
    ) -> mx.array:
        logits, visible = self._masked(logits, first, last, itself)
        if noise is not None:
            logits = logits + noise[:, :, None, None]
        if temperature is not None:
            logits = logits / self._temperatures(temperature, first, last)
        if visible is not None:
            logits = mx.where(visible, logits, HIDDEN)
        if self.sinks is not None:
            batch, heads, group, length, _ = logits.shape
            column = mx.broadcast_to(
                self.sinks.astype(mx.float32).reshape(1, heads, group, 1, 1), (batch, heads, group, length, 1)
            )
            weights = mx.softmax(mx.concatenate([logits, column], axis=-1), axis=-1)[..., :-1]
        else:
            weights = mx.softmax(logits, axis=-1)
        if visible is not None and isinstance(self.mask, mx.array):
            # a host's mask may hide every row from a query, which then has no weight to give
            weights = mx.where(visible, weights, 0.0)
        return weights

    def divisor(self, temperature: Temperature) -> float | None:
        """The temperature of a prompt's queries; None: each has its own."""
        many = isinstance(self.generated, tuple) or (self.decoded and self.length > 1)
        return None if many else temperature(cast(int, self.generated))

    def _temperatures(self, temperature: Temperature, first: int, last: int) -> float | mx.array:
        """One for each query of a block that was generated token by token: ``[s, 1]``."""
        if isinstance(self.generated, tuple):  # of one query each
            every = mx.array([temperature(generated) for generated in self.generated])
            return every[:, None, None, None, None]
        if not self.decoded or self.length == 1:
            return temperature(self.generated)
        each = [temperature(self.generated + number) for number in range(first, last)]
        return mx.array(np.array(each, np.float32)[:, None])

    def _visible(self, first: int, last: int, itself: bool) -> mx.array | None:
        """Which rows queries ``first`` to ``last`` see, ``[B, H, 1, s, n]`` or less; None: all."""
        newest = self.length == 1 and not self.later
        if itself and (self.mask is None or newest or isinstance(self.mask, mx.array)):
            return None
        # where a query does not see its own row, the very first one has no other
        query = (self.start + mx.arange(first, last, dtype=mx.int32))[..., None]
        query = query if query.ndim == 2 else query[:, :, None]  # [s, 1], or [B, 1, 1, s, 1]
        row = self.position[:, :, None, None]
        return row <= query if itself else row < mx.maximum(query, 1)

    def _masked(
        self, logits: mx.array, first: int, last: int, itself: bool
    ) -> tuple[mx.array, mx.array | None]:
        """Logits with the numbers that the host's mask adds, and which rows the queries see (None: all)."""
        visible = self._visible(first, last, itself)
        if not isinstance(self.mask, mx.array):
            return logits, visible
        batch, heads, group, length, n = logits.shape
        mask = self.mask[..., first:last, :] if self.mask.shape[-2] > 1 else self.mask
        if mask.ndim >= 3:
            mask = mx.broadcast_to(mask, (batch, heads * group, length, n)).reshape(logits.shape)
        if mask.dtype != mx.bool_:
            mask = mask.astype(mx.float32)
            logits, mask = logits + mask, mask > HIDDEN
        return logits, mask if visible is None else mask & visible


def _summed(weights: mx.array, decay: float, noise: mx.array | None) -> mx.array:
    """The mass ``[B, H, n]`` of weights ``[B, H, G, S, n]``; noise added to logits multiplies them."""
    count = mx.array((decay ** np.arange(weights.shape[3] - 1, -1, -1)).astype(np.float32))
    if noise is None:
        return mx.mean(count @ weights, axis=2)
    lift = mx.exp(noise - mx.max(noise, axis=2, keepdims=True))
    count = count / (weights @ lift[:, :, None, :, None])[..., 0]
    return lift * mx.mean((count[..., None, :] @ weights)[..., 0, :], axis=2)
