"""Attention of a generated token: one query of each head over many rows, which are read once for its group.

By the tensor cores of an NVIDIA GPU, in one launch. The reference, whose bits it has not, is
``mx.fast.scaled_dot_product_attention``: that asks much of CUDA's host, or reads rows once for every head.
"""

import functools
import math
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx_kernels.bodies import compose
from vqx_kernels.kernel import Run, prepared
from vqx_kernels.small import floats

WIDTHS = (64, 96, 128)
"""Channels of a head, of keys and values alike."""
GROUP = 8
"""Query heads that share rows, at most."""
BLOCKS = 32
"""Heads of all sequences, at least: each is one block, and too few of them leave a GPU idle."""
ERROR = 1e-4
"""Of a head's greatest number: as far as it may be from float64, beside the rounding of its type."""


def attended(
    target: str, queries: mx.array, keys: mx.array, values: mx.array, scale: float
) -> mx.array | None:
    """softmax(scale · q · k) · v, ``[B, H * G, 1, D]`` in the queries' type.

    None: these arrays are not served.

    Args:
        queries: ``[B, H * G, 1, D]`` float16 or bfloat16.
        keys, values: ``[B, H, n, D]`` of the same type, mostly the first rows of a buffer.
    """
    types = (queries.dtype, keys.dtype, values.dtype)
    batch, heads, _, width = keys.shape
    launch = _served(target, types, queries.shape, (batch, heads, width), values.shape[3])
    if launch is None:
        return None
    return launch([queries, keys, values, _factor(scale)])[0]


@functools.lru_cache(maxsize=64)
def _served(
    target: str,
    types: tuple[mx.Dtype, ...],
    asked: tuple[int, ...],
    held: tuple[int, int, int],
    width: int,
) -> Run | None:
    batch, heads, channels = held
    group = asked[1] // heads
    right = asked == (batch, heads * group, 1, width) and channels == width and width in WIDTHS
    halves = len({*types}) == 1 and types[0] in (mx.float16, mx.bfloat16)
    if target != "cuda" or not right or not halves or group > GROUP or batch * heads < BLOCKS:
        return None
    return None if wrong(target) else launch(target, types[0], batch, heads, group, width)


@functools.lru_cache(maxsize=64)
def launch(target: str, dtype: mx.Dtype, batch: int, heads: int, group: int, width: int) -> Run:
    """What does it, of queries, keys, values and a factor, whatever it is worth."""
    return prepared(
        target,
        compose(("attended",)),
        (dtype, dtype, dtype, mx.float32),
        (("H", heads), ("G", group), ("D", width)),
        rows=batch * heads,
        parts=1,
        outputs=(((batch, heads * group, 1, width), dtype),),
    )


@functools.lru_cache(maxsize=64)
def _factor(scale: float) -> mx.array:
    return floats((scale / math.log(2),))


class Case(NamedTuple):
    """A token, drawn from a number."""

    dtype: mx.Dtype
    batch: int
    heads: int
    group: int
    rows: int
    width: int
    sharp: float = 1.0
    """What logits are multiplied by."""


CASES = {
    "of one token, bfloat": Case(mx.bfloat16, 2, 2, 4, 301, 64),
    "of one token, half": Case(mx.float16, 1, 2, 3, 257, 64, 8.0),
    "of one token, sharp": Case(mx.bfloat16, 1, 1, 8, 1000, 96, 8.0),
    "of one token, wide": Case(mx.float16, 2, 1, 1, 130, 128),
    "of one token, few rows": Case(mx.bfloat16, 1, 3, 4, 1, 128),
}


def drawn(case: Case) -> tuple[mx.array, mx.array, mx.array]:
    """Queries, keys and values; of the last two the first rows of buffers that hold NaN behind them."""
    made = np.random.Generator(np.random.Philox(case.rows))
    lanes, n = (case.batch, case.heads), case.rows
    queries = made.standard_normal((case.batch, case.heads * case.group, 1, case.width)) * case.sharp
    rows = made.standard_normal((2, *lanes, n + 7, case.width))
    rows[:, :, :, n:] = np.nan
    keys, values = (mx.array(each.astype(np.float32)).astype(case.dtype)[:, :, :n] for each in rows)
    return mx.array(queries.astype(np.float32)).astype(case.dtype), keys, values


def apart(target: str, case: Case) -> float:
    """How far it is from float64, of a head's greatest number, beside the rounding of its type."""
    queries, keys, values = drawn(case)
    run = launch(target, case.dtype, case.batch, case.heads, case.group, case.width)
    found = run([queries, keys, values, _factor(case.width**-0.5)])[0]
    return beyond(np.array(found.astype(mx.float32), float), exact(queries, keys, values), case.dtype)


def beyond(found: Any, right: Any, dtype: mx.Dtype) -> float:
    """As ``apart``, of numbers of that type and float64's; infinite where one is NaN."""
    bits = 8 if dtype == mx.bfloat16 else 11
    rounding = np.ldexp(0.5, np.frexp(right)[1] - bits)
    far = np.maximum(np.abs(found - right) - rounding, 0) / np.max(np.abs(right), axis=-1, keepdims=True)
    return float(np.max(np.where(np.isnan(far), np.inf, far)))


def exact(queries: mx.array, keys: mx.array, values: mx.array) -> Any:
    """The definition in float64, of a scale of one over the root of the width."""
    asked, keyed, valued = (np.array(each.astype(mx.float32), float) for each in (queries, keys, values))
    batch, heads, _, width = keyed.shape
    logits = width**-0.5 * asked.reshape(batch, heads, -1, width) @ keyed.swapaxes(-1, -2)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True) @ valued).reshape(asked.shape)


@functools.cache
def wrong(target: str) -> str:
    """Why no token's attention is left to it, in words; empty where it gives what it should."""
    try:
        far = apart(target, CASES["of one token, bfloat"])
    except Exception as error:  # whatever a driver or compiler says
        return f"it does not run: {str(error).splitlines()[0] if str(error) else error!r}"
    return "" if far <= ERROR else f"it is off by {far:.1e}, where {ERROR:.0e} is allowed"
