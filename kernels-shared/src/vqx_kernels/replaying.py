"""Token cadence over a tile: one row goes for each token that comes, decided before the next is looked at.

A token's choice waits for that of the one before, so a block works through the tile alone; the reference is
``vqx.state.replay``.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx

from vqx_kernels.attention import FUSE, HIDE, Rule
from vqx_kernels.bodies import Method, compose
from vqx_kernels.kernel import run
from vqx_kernels.small import Guard, floats, shares, sizes


class Tile(NamedTuple):
    """T tokens of one layer, and the rows held before them: M candidates."""

    products: mx.array  # [B, H, G, Q, M] float32: scaled logits, of up to S - 1 earlier queries and the T
    places: mx.array  # [B, H, M] int32: positions, those of the tokens last and in their order
    columns: Mapping[str, mx.array]  # each [B, H, M] float32
    new: int  # T
    start: int  # position of the first token
    sinks: mx.array | None = None  # [H * G] logits that join the softmax's denominator


class Replayed(NamedTuple):
    """The rows that stay, oldest first."""

    chosen: mx.array  # [B, H, m] int32 of M
    columns: Mapping[str, mx.array]  # each [B, H, m] float32


def replayed(
    target: str,
    tile: Tile,
    rule: Rule,
    method: Method,
    guard: Guard,
    budget: int,
    window: int,
    factors: Sequence[Sequence[float]],
) -> Replayed:
    """Let the tokens of a tile come one by one.

    Args:
        budget: rows that stay; at most as many are held before.
        window: queries that a score looks at; 0 for a method that observes every query once. Where a row
            goes, that many are there.
        factors: for each token the method's own numbers.
    """
    batch, heads, group, asked, candidates = tile.products.shape
    length, names = max(window, 1), tuple(tile.columns)
    n = min(candidates, budget + 1)
    body = compose(("replayed",), method, columns=names)
    numbers = tuple([float(number) for each in factors for number in each]) or (0.0,)
    arrays = {
        "products": tile.products,
        "places": tile.places,
        "sizes": sizes(n, rule.old, guard, length),
        "counts": _counts(candidates, tile.new, asked, tile.start, budget),
        "factors": floats(numbers),
        "shares": shares(length, 1.0, rule.queries == "mean"),
        "sinks": floats((0.0,)) if tile.sinks is None else tile.sinks.astype(mx.float32),
        **{f"{name}_held": column for name, column in tile.columns.items()},
    }
    constants = {
        "H": heads, "G": group, "ONE": int(length == 1), "OBSERVES": int(not window),
        "FUSE": FUSE[rule.fuse_logits], "HIDE": HIDE[rule.hide], "MAXG": int(rule.group == "max"),
        "MAXS": int(rule.queries == "max"), "SINKS": int(tile.sinks is not None), "FACTORS": len(factors[0]),
        "TOPS": 1 if rule.fuse_logits else min(group, 4),
    }  # fmt: skip
    shape = (batch, heads, n)
    shapes = {
        "logits": ((batch, heads, group * length, n), mx.float32),
        "tops": ((batch, heads, group * length, 2), mx.float32),
        "chosen": (shape, mx.int32),
        "position": (shape, mx.int32),
    }
    outputs = [shapes.get(name, (shape, mx.float32)) for name in body.writes]
    found = run(target, body, arrays, constants, rows=batch * heads, outputs=outputs)
    made = dict(zip(body.writes, found, strict=True))
    order = mx.argsort(made["position"], axis=2)[..., : min(n, budget)]

    def taken(array: mx.array) -> mx.array:
        return mx.take_along_axis(array, order, axis=2)

    return Replayed(taken(made["chosen"]), {name: taken(made[f"{name}_out"]) for name in names})


@functools.lru_cache(maxsize=256)
def _counts(*numbers: int) -> mx.array:
    return mx.array(numbers, mx.int32)
