"""The rows that one layer holds, and how rows are appended, picked and overwritten.

Buffers hold more rows than are filled, so that a token is written in place and the cache is not copied.
"""

from collections.abc import Mapping
from typing import NamedTuple

import mlx.core as mx

STEP = 256
"""Rows by which a buffer grows while the budget is not reached (as in mlx-lm's KVCache)."""


class Rows(NamedTuple):
    """n rows; ``keys`` and ``values`` may have room for more, the columns are exact."""

    keys: mx.array  # [B, H, capacity, D] as received, rotated for the position they came at
    values: mx.array  # [B, H, capacity, Dv]
    position: mx.array  # [B, H, n] int32, the token's place in its sequence
    columns: Mapping[str, mx.array]  # each [B, H, n]: the scorer's statistics, and what else goes with a row


def no_rows(like: Rows) -> Rows:
    """Rows of an empty layer, with the widths and types of ``like``."""
    keys, values, position, columns = like
    return Rows(
        keys[..., :0, :], values[..., :0, :], position[..., :0], {k: c[..., :0] for k, c in columns.items()}
    )


def append(rows: Rows, new: Rows, bound: int | None = None) -> Rows:
    """Write the S rows of ``new`` behind the n rows held; ``bound`` rows are as many as may ever be."""
    held, added = rows.position.shape[2], new.position.shape[2]
    rows = reserve(rows, held + added, bound)
    at = mx.array([held])
    return Rows(
        mx.slice_update(rows.keys, new.keys, at, axes=[2]),
        mx.slice_update(rows.values, new.values, at, axes=[2]),
        position=mx.concatenate([rows.position, new.position], axis=2),
        columns={k: mx.concatenate([c, new.columns[k]], axis=2) for k, c in rows.columns.items()},
    )


def reserve(rows: Rows, capacity: int, bound: int | None = None) -> Rows:
    """Make room for ``capacity`` rows, growing by whole steps, and not past ``bound`` if that suffices."""
    missing = capacity - rows.keys.shape[2]
    if missing <= 0:
        return rows
    more = -(-missing // STEP) * STEP
    if bound is not None:
        more = min(more, max(bound - rows.keys.shape[2], missing))
    room = [(0, 0), (0, 0), (0, more), (0, 0)]
    return rows._replace(keys=mx.pad(rows.keys, room), values=mx.pad(rows.values, room))


def filled(rows: Rows) -> tuple[mx.array, mx.array]:
    """The filled part of the buffers: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
    n = rows.position.shape[2]
    if n == rows.keys.shape[2]:
        return rows.keys, rows.values
    return rows.keys[..., :n, :], rows.values[..., :n, :]


def pick(rows: Rows, slots: mx.array, room: int = 0) -> Rows:
    """Keep the rows at ``slots`` ``[B, H, m]`` in that order, in new buffers with ``room`` rows more."""
    padded = mx.pad(slots, [(0, 0), (0, 0), (0, room)])[..., None]
    return Rows(
        mx.take_along_axis(rows.keys, padded, axis=2),
        mx.take_along_axis(rows.values, padded, axis=2),
        mx.take_along_axis(rows.position, slots, axis=2),
        {k: mx.take_along_axis(c, slots, axis=2) for k, c in rows.columns.items()},
    )


def overwrite(rows: Rows, slot: mx.array, new: Rows) -> Rows:
    """Write the one row of ``new`` over the row at ``slot`` ``[B, H, 1]``: attention minds no order."""
    keys = mx.put_along_axis(rows.keys, slot[..., None], new.keys, axis=2)
    values = mx.put_along_axis(rows.values, slot[..., None], new.values, axis=2)
    position = mx.put_along_axis(rows.position, slot, new.position, axis=2)
    columns = {k: mx.put_along_axis(c, slot, new.columns[k], axis=2) for k, c in rows.columns.items()}
    return Rows(keys, values, position, columns)
