"""The rows that one layer holds, and how rows are appended, picked and overwritten.

Buffers hold more rows than are filled, so that a token is written in place and the cache is not copied.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx

from vqx import kernels

STEP = 256
"""Rows by which a buffer grows while the budget is not reached (as in mlx-lm's KVCache)."""

MUCH = 3 * 2**22
"""Bytes of keys from which on cuDNN's attention is the faster one, measured on an NVIDIA H200; of two
sequences twice as many, of more three times, since a GPU waits for what their matrix products ask of its
host."""

ONCE = 9 * 2**21
"""Numbers of keys, of several sequences, from which on a kernel reads a generated token's rows on CUDA: where
cuDNN's attention, which asks more of its host, would be the faster one of MLX's."""


class Rows(NamedTuple):
    """n rows; ``keys`` and ``values`` may have room for more, the columns are exact.

    Behind them may stand ``bare`` rows: keys and values, whose position and columns are written later.
    """

    keys: mx.array  # [B, H, capacity, D] as received, rotated for the position they came at
    values: mx.array  # [B, H, capacity, Dv]
    position: mx.array  # [B, H, n] int32, the token's place in its sequence
    columns: Mapping[str, mx.array]  # each [B, H, n]: the scorer's statistics, and what else goes with a row
    bare: int = 0

    @property
    def length(self) -> int:
        """Rows filled, the bare ones among them."""
        return int(self.position.shape[2]) + self.bare

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, room for growth included."""
        return int(self.keys.nbytes + self.values.nbytes)


def begin(new: Rows, bound: int | None = None) -> Rows:
    """The rows of a layer that held none, as of ``append``."""
    length = new.position.shape[2]
    capacity = -(-length // STEP) * STEP
    if bound is not None:
        capacity = min(capacity, max(capacity_for(bound, new.keys), length))
    return new._replace(keys=_roomy(new.keys, capacity), values=_roomy(new.values, capacity))


def _roomy(new: mx.array, capacity: int) -> mx.array:
    batch, heads, length, width = new.shape
    if length == capacity:  # a view of one product of queries, keys and values would keep all of it
        return new.reshape(-1).reshape(new.shape)
    buffer = mx.zeros((batch, heads, capacity, width), new.dtype)
    buffer[:, :, :length] = new
    return buffer


def without_buffers(rows: Rows) -> Rows:
    """The rows less keys and values: who holds these keeps them from being written in place."""
    return rows._replace(keys=_NOTHING, values=_NOTHING)


_NOTHING = mx.zeros((0,))


def append(rows: Rows, new: Rows, bound: int | None = None) -> Rows:
    """Write the S rows of ``new`` behind the n rows held; ``bound`` rows are as many as may ever be."""
    held, added = rows.position.shape[2], new.position.shape[2]
    rows = reserve(rows, held + added, bound)
    return Rows(
        written(rows.keys, new.keys, held),
        written(rows.values, new.values, held),
        position=mx.concatenate([rows.position, new.position], axis=2),
        columns={k: mx.concatenate([c, new.columns[k]], axis=2) for k, c in rows.columns.items()},
    )


def append_bare(rows: Rows, keys: mx.array, values: mx.array) -> Rows:
    """Write one row behind those filled, where there is room, and nothing else."""
    held_keys, held_values, position, columns, bare = rows
    at = position.shape[2] + bare
    held_keys, held_values = held_keys[...], held_values[...]  # as in written, without a call for each
    held_keys[:, :, at : at + 1] = keys
    held_values[:, :, at : at + 1] = values
    return Rows(held_keys, held_values, position, columns, bare + 1)


def written(buffer: mx.array, new: mx.array, at: int) -> mx.array:
    """The buffer ``[B, H, capacity, D]`` with the rows of ``new`` from ``at`` on."""
    buffer = buffer[...]  # the array given stays as it is; in memory the rows are written in place
    buffer[:, :, at : at + new.shape[2]] = new
    return buffer


def reserve(rows: Rows, capacity: int, bound: int | None = None) -> Rows:
    """Make room for ``capacity`` rows, growing by whole steps, and not past ``bound`` if that suffices."""
    missing = capacity - rows.keys.shape[2]
    if missing <= 0:
        return rows
    more = -(-missing // STEP) * STEP
    if bound is not None:
        more = min(more, max(capacity_for(bound, rows.keys) - rows.keys.shape[2], missing))
    room = [(0, 0), (0, 0), (0, more), (0, 0)]
    return rows._replace(keys=mx.pad(rows.keys, room), values=mx.pad(rows.values, room))


def capacity_for(rows: int, keys: mx.array) -> int:
    """Rows of a buffer that will hold so many of ``keys`` ``[B, H, any, D]``.

    On CUDA it says which attention reads a generated token's rows. cuDNN's takes buffers of whole steps only:
    where there is much to read it is the faster one, else MLX's own, which takes half as long to ask for.
    """
    if not (mx.cuda.is_available() and mx.default_device() == mx.gpu):
        return rows
    batch, heads, _, width = keys.shape
    if rows * batch * heads * width * keys.dtype.size > MUCH * min(batch, 3):
        return -(-rows // STEP) * STEP
    return rows + (rows % STEP == 0)


def filled(rows: Rows) -> tuple[mx.array, mx.array]:
    """The filled part of the buffers: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
    return first(rows.keys, rows.values, rows.length)


def first(keys: mx.array, values: mx.array, n: int) -> tuple[mx.array, mx.array]:
    """The first n rows of two buffers ``[B, H, capacity, *]``; nothing is asked of MLX where they are all."""
    return (keys, values) if n == keys.shape[2] else (keys[:, :, :n], values[:, :, :n])


def pick(rows: Rows, slots: mx.array, room: int = 0, known: kernels.Kept | None = None) -> Rows:
    """Keep the rows at ``slots`` ``[B, H, m]`` in that order, in new buffers with ``room`` rows more.

    ``known`` are their positions and columns, where a kernel gathered them.
    """
    capacity = capacity_for(slots.shape[2] + room, rows.keys)
    found = kernels.picked([rows.keys], [rows.values], slots, capacity)
    if found is None:
        padded = mx.pad(slots, [(0, 0), (0, 0), (0, capacity - slots.shape[2])])[..., None]
        keys, values = (mx.take_along_axis(buffer, padded, axis=2) for buffer in (rows.keys, rows.values))
    else:
        (keys,), (values,) = found
    if known is not None:
        return Rows(keys, values, known.position, known.columns)
    return Rows(
        keys,
        values,
        mx.take_along_axis(rows.position, slots, axis=2),
        {k: mx.take_along_axis(c, slots, axis=2) for k, c in rows.columns.items()},
    )


def move(rows: Rows, slots: mx.array) -> Rows:
    """Write the last m rows over those at ``slots`` ``[B, H, m]``, in place, and drop their old slots.

    A row that is to go names its own slot.
    """
    at = slots[..., None]
    return Rows(
        _over(rows.keys, at, rows.length),
        _over(rows.values, at, rows.length),
        moved(rows.position, slots),
        {k: moved(c, slots) for k, c in rows.columns.items()},
    )


def moved(column: mx.array, slots: mx.array) -> mx.array:
    """As ``move``, of what goes with the rows: ``[B, H, n]`` to ``[B, H, n - m]``."""
    n, m = column.shape[2], slots.shape[2]
    return _over(column, slots, n)[..., : n - m]


def _over(array: mx.array, at: mx.array, n: int) -> mx.array:
    last = apart(array, n - at.shape[2], n)  # a view would keep the buffer from being written in place
    return mx.put_along_axis(array, at, last, axis=2)


class Behind(NamedTuple):
    """Of some sequences of a batch the rows from ``first`` to ``end``, in arrays of their own."""

    members: Sequence[int]
    first: int
    end: int
    keys: mx.array  # [b, H, m, D]
    values: mx.array  # [b, H, m, Dv]


def behind(rows: Rows, members: Sequence[int], first: int, end: int) -> Behind:
    """Those rows, read."""
    at = mx.array([*members])
    keys, values = (mx.take(buffer[:, :, first:end], at, axis=0) for buffer in (rows.keys, rows.values))
    return Behind(members, first, end, keys, values)


def move_behind(rows: Rows, late: Behind, slots: mx.array) -> Rows:
    """The rows ``late`` over those of their sequences at ``slots`` ``[b, H, m]``.

    In place, as ``move``; but nothing is dropped, since other sequences may have rows there.
    """
    at, head = mx.array([*late.members]), mx.arange(slots.shape[1])[:, None]

    def written(array: mx.array, new: mx.array) -> mx.array:
        array = array[...]  # as in written
        array[at[:, None, None], head, slots] = new
        return array

    def moved(column: mx.array) -> mx.array:
        return written(column, mx.take(column[:, :, late.first : late.end], at, axis=0))

    keys, values = written(rows.keys, late.keys), written(rows.values, late.values)
    columns = {name: moved(column) for name, column in rows.columns.items()}
    return Rows(keys, values, moved(rows.position), columns)


def apart(array: mx.array, first: int, end: int) -> mx.array:
    """A copy of ``array[:, :, first:end]``, joined of two halves.

    ``mx.contiguous`` cannot be exported, nor so planned; to gather, CUDA compiles a kernel first.
    """
    middle = (first + end) // 2
    return mx.concatenate([array[:, :, first:middle], array[:, :, middle:end]], axis=2)


def overwrite(rows: Rows, slot: mx.array, new: Rows) -> Rows:
    """Write the one row of ``new`` over the row at ``slot`` ``[B, H, 1]``: attention minds no order."""
    keys = mx.put_along_axis(rows.keys, slot[..., None], new.keys, axis=2)
    values = mx.put_along_axis(rows.values, slot[..., None], new.values, axis=2)
    position = mx.put_along_axis(rows.position, slot, new.position, axis=2)
    columns = {k: mx.put_along_axis(c, slot, new.columns[k], axis=2) for k, c in rows.columns.items()}
    return Rows(keys, values, position, columns)


class Gone(NamedTuple):
    """Rows that a layer holds no more, in arrays of their own."""

    keys: mx.array  # [B, H, m, D]
    values: mx.array  # [B, H, m, Dv]
    position: mx.array  # [B, H, m]


def going(rows: Rows, slots: mx.array) -> Gone:
    """The rows at ``slots`` ``[B, H, m]``."""
    keys, values = (mx.take_along_axis(array, slots[..., None], axis=2) for array in (rows.keys, rows.values))
    return Gone(keys, values, mx.take_along_axis(rows.position, slots, axis=2))
