"""How much of the attention to come falls on rows that a cache no longer holds."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache


def future_mass(model: nn.Module, tokens: mx.array, prompt: int) -> list[mx.array]:
    """A layer each, the attention of the tokens from ``prompt`` on to the rows before: ``[B, H, prompt]``."""
    caches, masses, attend = [KVCache() for _ in model.layers], [], llama.scaled_dot_product_attention
    mx.eval(model.model(tokens[:, :prompt], cache=caches))

    def noting(queries: mx.array, keys: mx.array, *rest: Any, scale: float, **other: Any) -> mx.array:
        batch, heads, _, width = keys.shape
        asked = queries.reshape(batch, heads, -1, queries.shape[2], width) * scale
        logits = asked @ keys[:, :, None].swapaxes(3, 4)
        hidden = mx.arange(keys.shape[2]) > mx.arange(prompt, prompt + queries.shape[2])[:, None]
        weights = mx.softmax(mx.where(hidden, -mx.inf, logits), axis=-1)[..., :prompt]
        masses.append(weights.mean(axis=(2, 3)))
        mx.eval(masses[-1])
        return attend(queries, keys, *rest, scale=scale, **other)

    llama.scaled_dot_product_attention = noting
    try:
        mx.eval(model.model(tokens[:, prompt:], cache=caches))
    finally:
        llama.scaled_dot_product_attention = attend
    return masses


def lost_mass(held: list[mx.array], masses: list[mx.array]) -> float:
    """The share of that attention which falls on rows no longer held, mean over layers."""
    gone = []
    for rows, mass in zip(held, masses, strict=True):
        there = mx.take_along_axis(mass, rows, axis=2).sum(axis=2)
        gone.append((1 - there / mass.sum(axis=2)).mean())
    return mx.stack(gone).mean().item()
