"""Whether a file made for a model fits the model at hand: for methods that are calibrated once."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

PROBED = 16
"""Numbers per layer that say which model it is."""
ALIKE = 0.9
"""Least cosine of two fingerprints of one model: quantised or tuned on it stays above, others are near 0."""


def fingerprint(attentions: Sequence[nn.Module | None], *, instead: bool = False) -> mx.array | None:
    """What the query projections make of one fixed input: ``[L, PROBED]``; None where a layer has none.

    ``instead`` asks another linear module of an attention that does not project its queries by themselves.
    """
    found = []
    for attention in attentions:
        projection: Any = _linear(attention) if instead else getattr(attention, "q_proj", None)
        weight = getattr(projection, "weight", None)
        if weight is None:
            return None
        width = weight.shape[1] * 32 // projection.bits if hasattr(projection, "bits") else weight.shape[1]
        found.append(projection(mx.cos(mx.arange(width))[None])[0, :PROBED].astype(mx.float32))
    return mx.stack(found)


def _linear(attention: nn.Module | None) -> nn.Module | None:
    """The linear module that makes queries, or else the first by name."""
    parts = [] if attention is None else attention.named_modules()
    linear = [(name, part) for name, part in parts if isinstance(part, (nn.Linear, nn.QuantizedLinear))]
    return min(linear, key=lambda one: (not one[0].startswith("q_proj"), one[0]))[1] if linear else None


def same_model(one: mx.array | None, other: mx.array | None) -> bool:
    """Whether two fingerprints are of one model; True where neither model has one."""
    if one is None or other is None:
        return one is None and other is None
    if one.shape != other.shape:
        return False
    a, b = one.flatten(), other.flatten()
    return bool((mx.sum(a * b) >= ALIKE * mx.linalg.norm(a) * mx.linalg.norm(b)).item())
