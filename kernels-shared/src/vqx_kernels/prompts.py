"""What a prompt's many queries give to each row, by the tensor cores of an NVIDIA GPU: no logits are written.

Queries and keys are multiplied twice, once for each query's sum and once for each row's. The hardware adds in
an order of its own: what it gives is near the reference, ``vqx.state.attention.Block``, and not its bits.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx

from vqx_kernels.attention import HIDE, Asked, Layers, Rule, as_factors, asking
from vqx_kernels.bodies import Method, compose
from vqx_kernels.kernel import run
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
    found = _pieces(target, asked, rule, noise, temperature, groups)
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
    piece = _pieces(target, asked, rule, None, 1.0, groups)
    batch, heads, pieces, n = piece.shape
    _, (_, _, _, length, _), _, place = asking(asked)
    arrays = {
        "piece": piece,
        "position": asked.position,
        "sizes": sizes(n, pieces, Guard(), length, *place),
        "starts": starts(asked.start, batch),
        "factors": as_factors((asked.scale, *factors)),
        **stats,
    }
    constants = {"H": heads, "HIDE": HIDE[rule.hide], "SPAN": SPAN}
    outputs = [((batch, heads, n), mx.float32)] * (len(method.writes) + 1)
    body = compose(("summed",), method)
    found = run(target, body, arrays, constants, rows=batch * heads, parts=-(-n // SPAN), outputs=outputs)
    return Observed(dict(zip(method.writes, found, strict=False)), found[-1])


def _pieces(
    target: str,
    asked: Asked | Layers,
    rule: Rule,
    noise: mx.array | None,
    temperature: float,
    groups: bool,
) -> mx.array:
    """What parts of the queries give to each row: ``[B, H, pieces, n]`` float32."""
    arrays, (batch, heads, group, length, width), layers, place = asking(asked)
    n = asked.position.shape[2]
    count = group * length
    unit = 1 / (math.log(2) * temperature)
    constants = {
        "D": width, "H": heads, "G": group, "TN": 128 if width <= 64 else 64 if width <= 128 else 32,
        "HIDE": HIDE[rule.hide], "SINKS": int(asked.sinks is not None), "NOISE": int(noise is not None),
        "GROUPS": int(groups),
    }  # fmt: skip
    rows, blocks = batch * heads, 3 if width <= 64 else 2 if width <= 128 else 1
    parts = min(PARTS, shared(rows, count, n))
    pieces = shared(rows, n, count)
    factors = floats((asked.scale * unit, unit, 1 / math.log(2)))
    arrays |= {
        "noise": factors if noise is None else noise.astype(mx.float32),
        "sinks": factors if asked.sinks is None else asked.sinks.astype(mx.float32),
        "factors": factors,
        "sizes": sizes(n, parts, Guard(), length, *place),
        "shares": shares(length, rule.decay, False),
    }
    arrays["bars"] = run(
        target, compose(("bars",), layers=layers, blocks=blocks), arrays, constants, rows=rows,
        parts=-(-count // TOGETHER) * parts, outputs=[((rows, parts, count), mx.float32)],
    )[0]  # fmt: skip
    shape = (batch, heads, pieces, n)
    return run(
        target, compose(("weighed",), layers=layers, blocks=blocks), arrays, constants, rows=rows,
        parts=-(-n // TOGETHER) * pieces, outputs=[(shape, mx.float32)],
    )[0]  # fmt: skip


def shared(rows: int, held: int, passing: int) -> int:
    """Blocks that see a part each of ``passing`` rows of one operand, for the same ``held`` of the other."""
    return max(1, min(BLOCKS // (rows * -(-held // TOGETHER)), -(-passing // (4 * TOGETHER))))
