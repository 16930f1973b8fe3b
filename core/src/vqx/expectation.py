"""The attention that rows can expect of queries to come, from the mean and covariance of those so far.

For normal queries the mean weight of a key before normalising has a closed form, so nothing need be waited
for (Expected Attention, arXiv 2510.00636).
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from vqx import kernels
from vqx.scorers import Held, Scorer

TILE = 2**23
"""Numbers of a product of keys with covariances held at once (32 MiB of float32)."""


def expected(*, n_sink: int = 4, future: int = 512, value_norm: bool = True, epsilon: float = 0.0) -> Scorer:
    """Score rows by the mean weight that the next ``future`` queries will give them.

    Args:
        n_sink: first positions whose queries and keys are left out: they are outliers, and never evicted.
        future: how many of the positions to come the rotation is averaged over.
        value_norm: multiply the weights by the norm of the values.
        epsilon: added to the weights before that.
    """

    def note(notes: Mapping[str, Any], queries: Any, start: Any) -> Mapping[str, Any]:
        if isinstance(start, mx.array):  # a token of each of several sequences, some perhaps among the sinks
            before = mx.maximum(start - n_sink, 0)[..., None]
            if not notes:
                batch, heads, group, _, width = queries.shape
                mean = mx.zeros((batch, heads, group, width))
                notes = {"mean": mean, "covariance": mx.zeros((*mean.shape, width))}
            found = gathered(notes, queries, before)
            return {
                name: mx.where(_like(start >= n_sink, new), new, notes[name]) for name, new in found.items()
            }
        skipped = max(n_sink - start, 0)
        if skipped >= queries.shape[3]:
            return notes
        return gathered(notes, queries[..., skipped:, :], max(start - n_sink, 0))

    def score(held: Held) -> Any:
        turn = held.rotary.averaged(held.place, future)
        mean = held.notes["mean"] @ (turn[:, None] if turn.ndim > 2 else turn)
        turn = turn[:, None, None] if turn.ndim > 2 else turn
        covariance = turn.swapaxes(-1, -2) @ held.notes["covariance"] @ turn
        logits = expected_logits(held.keys, mean, covariance)
        sink = (held.position < n_sink)[:, :, None]
        weights = mx.mean(mx.softmax(mx.where(sink, -mx.inf, logits), axis=-1), axis=2)
        if not value_norm:
            return weights
        return (weights + epsilon) * mx.linalg.norm(held.values.astype(mx.float32), axis=-1)

    return Scorer(score=score, note=note, rotary=True)


def gathered(notes: Mapping[str, Any], queries: mx.array, before: Any) -> Mapping[str, Any]:
    """The mean ``[B, H, G, D]`` and covariance ``[B, H, G, D, D]`` of ``before`` queries and S new ones.

    ``before`` is a number, or one for each sequence ``[B, 1, 1, 1]``.

    New queries are taken about their own mean and then merged (Chan, Golub and LeVeque, 1979), so that no
    two large sums are subtracted.
    """
    count = queries.shape[3]
    share = count / (before + count)
    mean = mx.mean(queries, axis=3)
    apart = queries - mean[..., None, :]
    covariance = apart.swapaxes(-1, -2) @ apart / count
    if isinstance(before, mx.array) or before:
        step = mean - notes["mean"]
        between = step[..., :, None] * step[..., None, :]
        mean = notes["mean"] + share * step
        share = share[..., None] if isinstance(share, mx.array) else share
        covariance = (1 - share) * notes["covariance"] + share * covariance + share * (1 - share) * between
    return {**notes, "mean": mean, "covariance": covariance}


def expected_logits(keys: mx.array, mean: mx.array, covariance: mx.array) -> mx.array:
    """log E[exp(q · k)] = mean · k + k · covariance · k / 2 of each query head: ``[B, H, G, n]`` float32."""
    found = kernels.expected(keys, mean, covariance)
    if found is not None:
        return found
    batch, heads, n, width = keys.shape
    group = mean.shape[2]
    step = max(1, TILE // (batch * heads * group * width))
    parts = []
    for first in range(0, n, step):
        some = keys[:, :, None, first : first + step].astype(mx.float32)
        spread = mx.sum((some @ covariance) * some, axis=-1)
        parts.append((some @ mean[..., None])[..., 0] + spread / 2)
    return mx.concatenate(parts, axis=-1)


def _like(mask: mx.array, array: mx.array) -> mx.array:
    """``[B, 1, 1]`` as it broadcasts against ``[B, H, G, ...]``."""
    return mask.reshape(-1, *[1] * (array.ndim - 1))
