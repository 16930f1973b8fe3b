"""What keys say without queries: the weights to expect of them, and what of one another they repeat.

Products of matrices of which only sums or maxima are wanted; the references are ``vqx.expectation`` and
``vqx_r_kv.method``.
"""

import mlx.core as mx

from vqx_kernels.attention import AT_ONCE
from vqx_kernels.bodies import compose
from vqx_kernels.kernel import run
from vqx_kernels.small import Guard, floats, sizes

SPAN = 64
"""Keys of a block."""


def expected(target: str, keys: mx.array, mean: mx.array, covariance: mx.array) -> mx.array:
    """mean · k + k · covariance · k / 2 of each query head: ``[B, H, G, n]`` float32.

    Args:
        keys: ``[B, H, n, D]`` float32, float16 or bfloat16.
        mean: ``[B, H, G, D]`` float32.
        covariance: ``[B, H, G, D, D]`` float32.
    """
    batch, heads, n, width = keys.shape
    group = mean.shape[2]
    arrays = {"keys": keys, "mean": mean, "covariance": covariance, "sizes": sizes(n, 0, Guard())}
    constants = {"D": width, "H": heads, "G": group, "QB": AT_ONCE, "SPAN": SPAN}
    return run(
        target,
        compose(("expected",)),
        arrays,
        constants,
        rows=batch * heads * group,
        parts=-(-n // SPAN),
        outputs=[((batch, heads, group, n), mx.float32)],
    )[0]


def spared(target: str, keys: mx.array, position: mx.array, threshold: float) -> mx.array:
    """The products with rows of which a row is the newest that they repeat: ``[B, H, n]`` float32.

    Args:
        keys: ``[B, H, n, D]`` of norm 1, float32, float16 or bfloat16.
        position: ``[B, H, n]`` int32 from 0 on, distinct along n.
        threshold: the product of two rows above which one repeats the other.
    """
    batch, heads, n, width = keys.shape
    known, rows, shape = sizes(n, 0, Guard()), batch * heads, (batch, heads, n)
    newest, product = run(
        target,
        compose(("repeats",)),
        {"keys": keys, "position": position, "sizes": known, "factors": floats((threshold,))},
        {"D": width, "H": heads, "QB": AT_ONCE},
        rows=rows,
        parts=-(-n // AT_ONCE),
        outputs=[(shape, mx.int32), (shape, mx.float32)],
    )
    return run(
        target,
        compose(("spared",)),
        {"newest": newest, "product": product, "sizes": known},
        {"SPAN": SPAN},
        rows=rows,
        parts=-(-n // SPAN),
        outputs=[(shape, mx.float32)],
    )[0]
