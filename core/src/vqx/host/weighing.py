"""MLX's attention on a CPU, written out, so that its weights need not be computed once more.

There ``mx.fast.scaled_dot_product_attention`` is these very operations, and its exponentials are what costs;
what a scorer wants of them are sums.
"""

from typing import Literal

import mlx.core as mx

from vqx import kernels


def weighs(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    """Whether MLX computes this attention as written out here, in the precision of statistics.

    Where kernels run, they look at the queries themselves.
    """
    if queries.dtype != mx.float32:  # asked at every layer of every token
        return False
    right = keys.dtype == values.dtype == mx.float32
    return right and mx.default_device() == mx.cpu and kernels.target() == "reference"


def weighed(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: Literal["causal"] | mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Attention bit for bit MLX's, and its weights.

    Args:
        queries: ``[B, H * G, S, D]``.
        keys: ``[B, H, n, D]``.
        values: ``[B, H, n, Dv]``.
        mask: None, ``"causal"``, or booleans ``[B, 1, 1, n]``.

    Returns:
        ``[B, H * G, S, Dv]``, and the weights, ``[B, H, G, S, n]``.
    """
    batch, count, length, width = queries.shape
    heads, n = keys.shape[1:3]
    asked = (queries * scale).reshape(batch, heads, count // heads, length, width)
    logits = asked @ keys[:, :, None].swapaxes(-1, -2)
    if mask is not None:
        row = mx.arange(n)
        seen = row[n - length :, None] >= row if isinstance(mask, str) else mask[:, None]
        logits = mx.where(seen, logits, mx.array(mx.finfo(mx.float32).min))
    weights = mx.softmax(logits, axis=-1, precise=True)
    found = weights @ values[:, :, None]
    return found.reshape(batch, count, length, -1), weights
