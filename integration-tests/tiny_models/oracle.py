"""What a model's attention did, in float64, from the arguments of its attention calls."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
import pytest
import vqx
from vqx.host.watching import NAME, Shown, expected, modules_of

Wide = npt.NDArray[np.float64]

WINDOW = 3


class Oracle:
    """One layer: the mass that every token gathered, and the logits of the latest queries.

    It knows a cache by its positions alone; everything else comes from what attention was handed.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.mass: Wide = np.zeros((0,))  # [B, H, T], of every token seen
        self.latest: list[tuple[Wide, Any]] = []  # logits [B, H, G, T] of one query; -inf: not seen
        self.compared = 0
        self.shared = 0
        self.error = 0.0

    def method(self, budget: int) -> vqx.Method:
        """Mass, and the weights of the latest queries, each of them compared at every eviction."""
        mass = vqx.accumulated()

        def score(held: vqx.Held) -> Any:
            latest = held.last.weights().sum(axis=3).mean(axis=2)
            found = np.stack([np.array(held.stats["mass"]), np.array(latest)])
            expected = np.stack(self.scores(np.array(held.position)))
            # mass adds up: 1e-5 of what is there, and of 1 where it is less
            self.error = max(self.error, float(np.max(np.abs(found - expected) / np.maximum(expected, 1))))
            self.compared += 1
            return held.stats["mass"] + latest

        return vqx.Method(mass._replace(score=score, window=WINDOW), budget, n_sink=1, recent=1)

    def saw(self, at: Any, queries: mx.array, keys: mx.array, scale: float, mask: Any, sinks: Any) -> None:
        """One attention call: queries ``[B, Hq, S, D]``, keys ``[B, Hk, n, D]``, positions ``[B, H, n]``."""
        asked, read = _wide(queries), _wide(keys)
        read = np.repeat(read, asked.shape[1] // read.shape[1], axis=1)
        logits = _masked(asked @ read.swapaxes(-1, -2) * scale, mask)
        batch, heads, n = at.shape
        logits = logits.reshape(batch, heads, -1, queries.shape[2], n)
        learned = None if sinks is None else _wide(sinks).reshape(1, heads, -1, 1)
        if not self.mass.size:
            self.mass = np.zeros((batch, heads, self.tokens))
        for query in range(logits.shape[3]):
            weights = _softmax(logits[:, :, :, query], learned).mean(axis=2)
            gathered = np.take_along_axis(self.mass, at, axis=2) + weights
            np.put_along_axis(self.mass, at, gathered, axis=2)
            whole = np.full((*logits.shape[:3], self.tokens), -np.inf)
            np.put_along_axis(whole, at[:, :, None], logits[:, :, :, query], axis=3)
            self.latest = [*self.latest, (whole, learned)][-WINDOW:]

    def scores(self, at: Any) -> tuple[Wide, Wide]:
        """Of the rows at these positions: their mass, and the latest queries' weights over them alone."""
        total = np.zeros(at.shape)
        for logits, learned in self.latest:
            total += _softmax(np.take_along_axis(logits, at[:, :, None], axis=3), learned).mean(axis=2)
        return np.take_along_axis(self.mass, at, axis=2), total


def record(model: nn.Module, oracles: Callable[[Any], Oracle | None], patch: pytest.MonkeyPatch) -> None:
    """Show every attention call to the oracle of its cache, the first of a forward alone."""

    def seen(cache: Any, queries: Any, keys: Any, scale: float, mask: Any, sinks: Any = None) -> None:
        oracle = oracles(cache)
        if oracle is None:
            return
        if cache.unseen:
            oracle.saw(np.array(cache.position), queries, keys, scale, mask, sinks)
        else:  # a layer that shares the cache
            assert mx.array_equal(keys, cache.keys_and_values()[0]).item()
            oracle.shared += 1

    for module in modules_of(model):
        if hasattr(module, NAME):
            patch.setattr(module, NAME, _called(getattr(module, NAME), seen))
        if isinstance(getattr(module, "mx", None), Shown):  # attention is written out
            written = module.mx
            fast = Shown(written.fast, scaled_dot_product_attention=_written(written.fast, seen))
            patch.setattr(module, "mx", Shown(written, fast=fast, softmax=_softened(written, seen)))


def _called(attend: Any, seen: Any) -> Any:
    def attention(
        queries: Any, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
    ) -> Any:
        seen(cache, queries, keys, scale, mask, sinks)
        return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

    return attention


def _written(fast: Any, seen: Any) -> Any:
    def attention(q: Any, k: Any, v: Any, *, scale: float, mask: Any = None) -> Any:
        seen(expected(q.shape[2], k.shape[2]), q, k, scale, mask)
        return fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)

    return attention


def _softened(written: Any, seen: Any) -> Any:
    """The logits of a softmax are all that is left of the attention before it."""

    def softmax(logits: Any, **options: Any) -> Any:
        cache = expected(*logits.shape[-2:])
        flat = logits.reshape(logits.shape[0], -1, *logits.shape[-2:])
        unit = mx.eye(logits.shape[-1])[None, None]  # row j of the identity is key j
        seen(cache, flat, unit, 1.0, None)
        return written.softmax(logits, **options)

    return softmax


def _masked(logits: Wide, mask: Any) -> Wide:
    if mask is None:
        return logits
    if isinstance(mask, str):
        length, n = logits.shape[-2:]
        return np.where(np.tri(length, n, n - length, dtype=bool), logits, -np.inf)
    if mask.dtype == mx.bool_:
        return np.where(np.array(mask), logits, -np.inf)
    return logits + _wide(mask)


def _softmax(logits: Wide, learned: Any) -> Wide:
    top = logits.max(axis=-1, keepdims=True)
    powers = np.exp(logits - top)
    total = powers.sum(axis=-1, keepdims=True)
    if learned is not None:
        total = total + np.exp(learned - top)
    return np.asarray(powers / total)


def _wide(array: mx.array) -> Wide:
    return np.array(array.astype(mx.float32)).astype(np.float64)
