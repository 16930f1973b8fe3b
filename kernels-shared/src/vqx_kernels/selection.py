"""Which rows go, given scores: the lowest one, or all but the highest ones; exact on every target.

Higher stays, of equal scores the newer row. The reference is ``vqx.eviction``.
"""

from collections.abc import Mapping
from typing import NamedTuple

import mlx.core as mx

from vqx_kernels.bodies import GAINED, Method, compose
from vqx_kernels.kernel import run
from vqx_kernels.small import Guard, sizes, starts


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
    return _select(target, "survivors", ranked, position, keep, ((*ranked.shape,), mx.bool_))


class Exchanged(NamedTuple):
    """The row that goes, and the rows once the next token stands in its place."""

    slot: mx.array  # [B, H, 1] int32
    next: mx.array  # [B, H, n] int32 positions


def exchanged(
    target: str,
    scores: mx.array,
    position: mx.array,
    end: int | mx.array,
    guard: Guard,
    method: Method | None = None,
) -> Exchanged:
    """Guard the scores, choose the lowest one, and put the token at ``end`` in its place.

    Args:
        scores: ``[B, H, n]`` float32.
        position: ``[B, H, n]`` int32.
        end: the next token's position; ``[B]`` int32 where sequences differ.
        method: one of no statistics and no numbers, whose lines score a row by the mean of ``scores`` over
            the heads of its layer; None: every head's rows have scores of their own.
    """
    batch, heads, n = scores.shape
    arrays = {"scores": scores, "position": position, "sizes": sizes(n, 0, guard)}
    arrays["starts"] = starts(end - 1, batch)
    rows = (batch, heads, n)
    outputs = [(rows, mx.float32), ((batch, heads, 1), mx.int32), (rows, mx.int32)]
    body = compose(("guarded", "lowest", "exchanged"), method or GAINED)
    constants = {"H": heads, "LAYER": int(method is not None)}
    found = run(target, body, arrays, constants, rows=batch * heads, outputs=outputs)
    return Exchanged(*found[1:])


class Kept(NamedTuple):
    """The rows that stay of many."""

    slots: mx.array
    """int32: in place [B, H, n - keep], where each of the last rows goes; else [B, H, keep], which stay."""
    position: mx.array  # [B, H, keep] int32
    columns: Mapping[str, mx.array]  # each [B, H, keep] float32


def kept(
    target: str,
    ranked: mx.array,
    position: mx.array,
    columns: Mapping[str, mx.array],
    keep: int,
    *,
    in_place: bool,
    guard: Guard | None = None,
    end: int | mx.array = 0,
) -> Kept:
    """Drop all but the ``keep`` highest scores, of equal ones the newest.

    Args:
        ranked: ``[B, H, n]`` float32, guarded and without NaN; any scores where there is a ``guard``.
        position: ``[B, H, n]`` int32 from 0 on, distinct along n.
        columns: what goes with the rows, each ``[B, H, n]`` float32.
        in_place: rows that stay behind the first ``keep`` go over those of the first that do not stay; else
            all stand in the order in which they stood.
        guard: what no score can evict; None: the scores say so.
        end: the next token's position, as of ``exchanged``; where there is a ``guard``.
    """
    batch, heads, n = ranked.shape
    names = ("survivors", "moved" if in_place else "packed")
    body = compose(names if guard is None else ("guarded", *names), columns=tuple(columns))
    arrays = {"position": position, "sizes": sizes(n, keep, guard or Guard())}
    arrays["ranked" if guard is None else "scores"] = ranked
    if guard is not None:
        arrays["starts"] = starts(end - 1, batch)
    arrays.update({f"{name}_held": column for name, column in columns.items()})
    rows = (batch, heads, n)
    short = ((batch, heads, n - keep if in_place else keep), mx.int32)
    shapes = {"ranked": (rows, mx.float32), "stay": (rows, mx.bool_)}
    shapes.update(vacant=short, slots=short)
    shapes["kept"] = ((batch, heads, keep), mx.int32)
    shapes.update({f"{name}_kept": ((batch, heads, keep), mx.float32) for name in columns})
    outputs = [shapes[name] for name in body.writes]
    found = dict(
        zip(
            body.writes,
            run(target, body, arrays, {"H": heads, "LAYER": 0}, rows=batch * heads, outputs=outputs),
            strict=True,
        )
    )
    return Kept(found["slots"], found["kept"], {name: found[f"{name}_kept"] for name in columns})


def _select(
    target: str,
    name: str,
    ranked: mx.array,
    position: mx.array,
    keep: int,
    output: tuple[tuple[int, ...], mx.Dtype],
) -> mx.array:
    batch, heads, n = ranked.shape
    arrays = {"ranked": ranked, "position": position, "sizes": sizes(n, keep, Guard())}
    return run(target, compose((name,)), arrays, {}, rows=batch * heads, outputs=[output])[0]
