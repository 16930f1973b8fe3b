"""MLX's attention of one token on a CPU, written out, so that its weights need not be computed once more.

There ``mx.fast.scaled_dot_product_attention`` is these very operations, and its exponentials are what costs;
what a scorer wants of a generated token is their mean over the query group.
"""

import mlx.core as mx

from vqx import kernels


def weighs(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    """Whether MLX computes this attention as written out here, in the precision of statistics.

    Where kernels run, they look at the queries themselves.
    """
    right = queries.shape[2] == 1 and queries.dtype == keys.dtype == values.dtype == mx.float32
    return right and mx.default_device() == mx.cpu and kernels.target() == "reference"


def weighed(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> tuple[mx.array, mx.array]:
    """Attention without a mask, bit for bit MLX's, and what it gave to each row.

    Args:
        queries: ``[B, H * G, 1, D]``.
        keys: ``[B, H, n, D]``.
        values: ``[B, H, n, Dv]``.

    Returns:
        ``[B, H * G, 1, Dv]``, and the weights' mean over each group, ``[B, H, n]``.
    """
    batch, count, _, width = queries.shape
    heads = keys.shape[1]
    asked = (queries * scale).reshape(batch, heads, count // heads, 1, width)
    weights = mx.softmax(asked @ keys[:, :, None].swapaxes(-1, -2), axis=-1, precise=True)
    found = weights @ values[:, :, None]
    mass = mx.mean(weights, axis=2).reshape(batch, heads, -1)
    return found.reshape(batch, count, 1, -1), mass
