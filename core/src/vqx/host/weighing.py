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
    *,
    grouped: bool = False,
) -> tuple[mx.array, mx.array]:
    """Attention, bit for bit MLX's unless ``grouped``, and its weights.

    Args:
        queries: ``[B, H * G, S, D]``.
        keys: ``[B, H, n, D]``.
        values: ``[B, H, n, Dv]``.
        mask: None, ``"causal"``, or booleans ``[B, 1, 1, n]``.
        grouped: of one token, heads that share rows are multiplied at once: rows are read once and not for
            each head, which takes less time and may add in another order.

    Returns:
        ``[B, H * G, S, Dv]``, and the weights, ``[B, H, G, S, n]``.
    """
    batch, count, length, width = queries.shape
    heads, n = keys.shape[1:3]
    if grouped:
        asked = (queries * scale).reshape(batch, heads, -1, width)
    else:
        asked = (queries * scale).reshape(batch, heads, count // heads, length, width)
        keys, values = keys[:, :, None], values[:, :, None]
    logits = asked @ keys.swapaxes(-1, -2)
    if isinstance(mask, str):
        mask = mx.arange(n - length, n)[:, None] >= mx.arange(n)
    elif mask is not None and not grouped:
        mask = mask[:, None]
    if mask is not None:
        logits = mx.where(mask, logits, mx.array(mx.finfo(mx.float32).min))
    weights = mx.softmax(logits, axis=-1, precise=True)
    found = (weights @ values).reshape(batch, count, length, -1)
    return found, weights[:, :, :, None] if grouped else weights
