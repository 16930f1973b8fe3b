"""Which rows go, given scores: the lowest one, or all but the highest ones; exact on every target.

Higher stays, of equal scores the newer row. The reference is ``vqx.eviction``.
"""

import mlx.core as mx

from vqx_kernels.attention import Guard, _sizes
from vqx_kernels.bodies import compose
from vqx_kernels.kernel import run


def victim(target: str, ranked: mx.array, position: mx.array) -> mx.array:
    """The slot of the lowest score, of the oldest row among equals: ``[B, H, 1]`` int32.

    Args:
        ranked: ``[B, H, n]`` float32 without NaN.
        position: ``[B, H, n]`` int32.
    """
    return _select(target, "lowest", ranked, position, 0, ((*ranked.shape[:2], 1), mx.int32))


def survivors(target: str, ranked: mx.array, position: mx.array, keep: int) -> mx.array:
    """Whether a row is among the ``keep`` highest scores, of equal ones the newest: ``[B, H, n]`` bool.

    Args:
        ranked: ``[B, H, n]`` float32 without NaN.
        position: ``[B, H, n]`` int32 from 0 on, distinct along n.
        keep: from 1 to n.
    """
    return _select(target, "survivors", ranked, position, keep, (ranked.shape, mx.bool_))


def _select(
    target: str,
    name: str,
    ranked: mx.array,
    position: mx.array,
    keep: int,
    output: tuple[tuple[int, ...], mx.Dtype],
) -> mx.array:
    batch, heads, n = ranked.shape
    arrays = {"ranked": ranked, "position": position, "sizes": _sizes(n, keep, Guard())}
    return run(target, compose((name,)), arrays, {}, rows=batch * heads, outputs=[output])[0]
