"""A right evicting cache and the same cache with one fault each, for the study of garbled prompts.

Every fault was seen in published eviction caches; none of this is part of a package. All caches here choose
rows alike (MorphKV with keys in the place of queries, so that rows can be chosen before attention runs) and
differ in one thing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama
from vqx.state.positions import Rotary

SINKS = 4


class Right:
    """One layer's rows, cut between forwards: kept rows, then new ones, all where the model put them."""

    def __init__(self, budget: int, window: int, rotary: Rotary) -> None:
        self.budget, self.window, self.rotary = budget, window, rotary
        self.seen = 0
        self.keys = self.values = self.position = None  # [B, H, n, D], [B, H, n, D], [B, H, n]

    @property
    def state(self) -> list[mx.array]:
        return [self.keys, self.values, self.position]

    @property
    def held(self) -> int:
        """Rows that remain for the next forward."""
        return 0 if self.position is None else min(self.position.shape[2], self.budget)

    @property
    def offset(self) -> int:
        return self.seen

    def make_mask(self, N: int, **_: Any) -> Any:
        return None if N == 1 else "causal"

    def mask(self, length: int) -> Any:
        """What the attention of this layer is told, once the rows are in."""
        return None if length == 1 else "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.cut()
        self.append(keys, values)
        return self.placed(), self.values

    def append(self, keys: mx.array, values: mx.array) -> None:
        batch, heads, length, _ = keys.shape
        position = mx.broadcast_to(mx.arange(self.seen, self.seen + length), (batch, heads, length))
        new = (keys, values, position)
        if self.position is not None:
            new = tuple(mx.concatenate(pair, axis=2) for pair in zip(self.state, new, strict=True))
        self.keys, self.values, self.position = new
        self.seen += length

    def cut(self) -> None:
        """Keep the ``budget`` rows that the last ``window`` keys attend to most, themselves and the sinks."""
        if self.position is None or self.position.shape[2] <= self.budget:
            return
        keys = self.placed()
        weights = mx.softmax(keys[..., -self.window :, :] @ keys.swapaxes(2, 3) * keys.shape[3] ** -0.5, -1)
        safe = (self.position < SINKS) | (self.position >= self.seen - self.window)
        score = mx.where(safe, mx.inf, weights.mean(axis=2))
        self.keep(mx.sort(mx.argsort(-score, axis=2)[..., : self.budget], axis=2))

    def keep(self, slots: mx.array) -> None:
        self.keys = mx.take_along_axis(self.keys, slots[..., None], axis=2)
        self.values = mx.take_along_axis(self.values, slots[..., None], axis=2)
        self.position = mx.take_along_axis(self.position, slots, axis=2)

    def placed(self) -> mx.array:
        """Keys as attention reads them."""
        return self.keys


class Inside(Right):
    """Fault: cuts inside the forward. Each query still sees no row newer than itself."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.append(keys, values)
        self.cut()
        return self.placed(), self.values

    def mask(self, length: int) -> Any:
        query = mx.arange(self.seen - length, self.seen)[:, None]
        seen = self.masked() <= query
        return mx.repeat(seen, GROUP, axis=1) if seen.shape[1] > 1 else seen

    def masked(self) -> mx.array:
        """Positions that make the mask, ``[B, heads or 1, 1, n]``."""
        return self.position[:, :, None]


class SurvivorsOnly(Inside):
    """Fault: cuts inside the forward under the host's causal mask, which counts rows from the end."""

    def mask(self, length: int) -> Any:
        return Right.mask(self, length)


class FirstHeadsMask(Inside):
    """Fault: cuts inside the forward under one mask for all heads, from the first head's positions."""

    def masked(self) -> mx.array:
        return self.position[:, :1, None]


class TopLeft(Right):
    """Fault: the right rows under a mask that starts at the first row: query i sees rows 0 to i."""

    def mask(self, length: int) -> Any:
        if length == 1:
            return None
        return mx.arange(self.position.shape[2])[None] <= mx.arange(length)[:, None]


class OffsetIsKept(Right):
    """Fault: the next token is rotated for the number of rows kept; keys stay as they came."""

    @property
    def offset(self) -> int:
        return self.held


class ShiftedByOne(Right):
    """Fault: each eviction turns the rows behind it back by one, while the offset stays true."""

    def keep(self, slots: mx.array) -> None:
        gone_before = slots - mx.arange(slots.shape[2])
        super().keep(slots)
        self.keys = self.rotary.turn(self.keys, -gone_before)


class Compact(Right):
    """Right as well: rows stand at 0 to n - 1, each turned once from the key as received; the next at n."""

    @property
    def offset(self) -> int:
        return self.held

    def append(self, keys: mx.array, values: mx.array) -> None:
        origin = mx.broadcast_to(mx.arange(self.held, self.held + keys.shape[2]), keys.shape[:3])
        self.origin = origin if self.position is None else mx.concatenate([self.origin, origin], axis=2)
        super().append(keys, values)

    def keep(self, slots: mx.array) -> None:
        self.origin = mx.take_along_axis(self.origin, slots, axis=2)
        super().keep(slots)

    def placed(self) -> mx.array:
        return self.rotary.turn(self.keys, mx.arange(self.keys.shape[2]) - self.origin)


GROUP = 3
"""Query heads that share a key-value head in the embedded model."""

CACHES: dict[str, Callable[..., Right]] = {
    "right": Right,
    "right, compact": Compact,
    "cut inside the forward": Inside,
    "survivors only": SurvivorsOnly,
    "mask of the first head": FirstHeadsMask,
    "mask from the first row": TopLeft,
    "offset = kept": OffsetIsKept,
    "shift by one": ShiftedByOne,
    "wrong base": Compact,  # with a rotary embedding of another base
}


@contextmanager
def own_masks() -> Iterator[None]:
    """Let each cache above tell its layer's attention the mask; other caches pass through."""
    attend = llama.scaled_dot_product_attention

    def attention(queries: Any, keys: Any, values: Any, cache: Any, mask: Any, **other: Any) -> Any:
        if isinstance(cache, Right):
            mask = cache.mask(queries.shape[2])
        return attend(queries, keys, values, cache=cache, mask=mask, **other)

    llama.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        llama.scaled_dot_product_attention = attend
