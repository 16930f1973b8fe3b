"""What a prompt's many queries give to each row, by the tensor cores of an NVIDIA GPU: no logits are written.

Queries and keys are multiplied twice, once for each query's sum and once for each row's. The hardware adds in
an order of its own: what it gives is near the reference, ``vqx.state.attention.Block``, and not its bits.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx

from vqx_kernels.attention import HIDE, Asked, Layers, Rule, as_factors, asking
from vqx_kernels.bodies import Method, compose
from vqx_kernels.kernel import Run, flat, prepared
from vqx_kernels.small import Guard, floats, shares, sizes, starts

TOGETHER = 128
"""Rows of the operand that a block holds: queries for the bars, keys for the sums."""
BLOCKS = 1024
"""Blocks of a launch, about: a query's keys and a key's queries go to several."""
SPAN = 256
"""Rows of a block where a method's own lines come to what was summed up."""
PARTS = 4
"""Blocks that a query's keys go to, at most (``VQX_PARTS``)."""


class Observed(NamedTuple):
    """What a prompt's queries leave of rows."""

    written: Mapping[str, mx.array]  # the method's statistics, each [B, H, n] float32
    score: mx.array  # [B, H, n] float32


def prompt_mass(
    target: str,
    asked: Asked | Layers,
    rule: Rule,
    noise: mx.array | None,
    temperature: float,
    groups: bool,
) -> mx.array:
    """As ``vqx_kernels.prompt_mass``; by groups of four warps where a device has them (Hopper)."""
    found, *_ = _pieces(target, asked, rule, noise, temperature, groups)
    return found[:, :, 0] if found.shape[2] == 1 else mx.sum(found, axis=2)


def observed(
    target: str,
    asked: Asked | Layers,
    rule: Rule,
    method: Method,
    stats: Mapping[str, mx.array],
    factors: Sequence[float | mx.array],
    groups: bool,
) -> Observed:
    """As ``vqx_kernels.observed``."""
    piece, length, place = _pieces(target, asked, rule, None, 1.0, groups)
    batch, heads, pieces, n = piece.shape
    given = [stats[name] for name in method.reads]
    kinds = piece.dtype, mx.int32, mx.int32, mx.float32, mx.int32, *[each.dtype for each in given]
    launch = _summing(target, method, kinds, HIDE[rule.hide], (batch, heads, n))
    small = sizes(n, pieces, _UNGUARDED, length, *place), as_factors((asked.scale, *factors))
    found = launch([piece, asked.position, *small, starts(asked.start, batch), *given])
    return Observed(dict(zip(method.writes, found, strict=False)), found[-1])


_UNGUARDED = Guard()


@functools.lru_cache(maxsize=256)
def _summing(
    target: str, method: Method, kinds: tuple[mx.Dtype, ...], hide: int, shape: tuple[int, int, int]
) -> Run:
    """The launch of ``summed``: of pieces, positions, sizes, factors, starts, and what the method reads."""
    batch, heads, n = shape
    return prepared(
        target,
        compose(("summed",), method),
        kinds,
        (("H", heads), ("HIDE", hide), ("SPAN", SPAN)),
        rows=batch * heads,
        parts=-(-n // SPAN),
        outputs=((shape, mx.float32),) * (len(method.writes) + 1),
    )


class _Launches(NamedTuple):
    """What prompts of a shape ask for: queries, keys, noise, sinks and small arrays -> bars -> pieces."""

    bars: Run
    weighed: Run
    factors: mx.array
    sizes: mx.array
    shares: mx.array


def _pieces(
    target: str,
    asked: Asked | Layers,
    rule: Rule,
    noise: mx.array | None,
    temperature: float,
    groups: bool,
) -> tuple[mx.array, int, tuple[int, int]]:
    """What parts of the queries give to each row: ``[B, H, pieces, n]`` float32; how many queries there are,
    and of several layers a layer's lanes and room."""
    arrays, shape, layers, place = asking(asked)
    operands = [*arrays.values()]
    bars, weighed, factors, small, shares = _launches(
        target, shape, asked.position.shape[2], (operands[0].dtype, operands[-1].dtype), rule, asked.scale,
        temperature, (noise is not None, asked.sinks is not None, groups), layers, place,
    )  # fmt: skip
    added = factors if noise is None else flat(noise.astype(mx.float32))
    sinks = factors if asked.sinks is None else flat(asked.sinks.astype(mx.float32))
    (tops,) = bars([*operands, added, sinks, factors, small, shares])
    return weighed([*operands, added, tops, factors, small])[0], shape[3], place


@functools.lru_cache(maxsize=256)
def _launches(
    target: str,
    shape: tuple[int, int, int, int, int],
    n: int,
    kinds: tuple[mx.Dtype, mx.Dtype],
    rule: Rule,
    scale: float,
    temperature: float,
    how: tuple[bool, bool, bool],
    layers: int,
    place: tuple[int, int],
) -> _Launches:
    batch, heads, group, length, width = shape
    noise, sinks, groups = how
    count, unit = group * length, 1 / (math.log(2) * temperature)
    constants = (
        ("D", width), ("H", heads), ("G", group), ("TN", 128 if width <= 64 else 64 if width <= 128 else 32),
        ("HIDE", HIDE[rule.hide]), ("SINKS", int(sinks)), ("NOISE", int(noise)), ("GROUPS", int(groups)),
    )  # fmt: skip
    rows, blocks = batch * heads, 3 if width <= 64 else 2 if width <= 128 else 1
    parts, pieces = min(PARTS, shared(rows, count, n)), shared(rows, n, count)
    found = []
    for name, held, times, output in (
        ("bars", count, parts, (rows, parts, count)),
        ("weighed", n, pieces, (batch, heads, pieces, n)),
    ):
        body = compose((name,), layers=layers, blocks=blocks)
        asks, gives = [kinds[0]] * layers + [kinds[1]] * layers, ((output, mx.float32),)
        asks += [mx.int32 if read == "sizes" else mx.float32 for read in body.reads[2 * layers :]]
        launches = -(-held // TOGETHER) * times
        how_many = {"rows": rows, "parts": launches}
        found.append(prepared(target, body, tuple(asks), constants, **how_many, outputs=gives))
    factors = floats((scale * unit, unit, 1 / math.log(2)))
    known = sizes(n, parts, _UNGUARDED, length, *place)
    return _Launches(found[0], found[1], factors, known, shares(length, rule.decay, False))


def shared(rows: int, held: int, passing: int) -> int:
    """Blocks that see a part each of ``passing`` rows of one operand, for the same ``held`` of the other."""
    return max(1, min(BLOCKS // (rows * -(-held // TOGETHER)), -(-passing // (4 * TOGETHER))))
