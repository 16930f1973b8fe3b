"""Compact positions: turn each key once, from the key as received, by the model's own rotary module.

Turning again and again drifts: in bfloat16 by 79 % after 2,048 single steps, against 0.24 % for one turn.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from vqx import kernels
from vqx.state.rows import Rows, moved

Rope = Callable[..., mx.array]
"""A model's rotary module: ``rope(x [..., T, D], offset=int or array)`` -> rotated x."""


STEPS = "steps"
"""The column of compact rows that says by how many positions each is turned back: older rows that went."""

NEAR = 256
"""Steps of the first of a kernel's two tables of turns."""

FAR = 128
"""Steps of the second, at least."""

THREADS, PLANES = 1024, 64
"""Threads that a block of an NVIDIA GPU has at most, and along its third axis."""

PROBES = ((3, 5), (700, -650), (9000, -8999), (4000, 2000))
"""Positions and turns at which a module is checked."""


class Tables(NamedTuple):
    """Cosines and sines of turns back, for keys whose channels pair up regularly."""

    channels: tuple[slice, slice]  # the first of each pair, and the second
    near: tuple[mx.array, mx.array]  # [256, P] float32 each: by t steps
    far: tuple[mx.array, mx.array]  # [F, P]: by 256 t steps


class Rotary(NamedTuple):
    """A model's rotary embedding, seen as a one-parameter group of linear maps times a scale."""

    rope: Rope
    scale: mx.array  # [D] what the module multiplies with apart from turning (yarn, su)
    mirror: mx.array  # [D] of +1 and -1: mirrored before and after, a turn goes the other way
    turns: Callable[[int], kernels.Turns]  # what turns back by less than so many steps are
    beside: int = 1  # times that a key is turned side by side, so that its positions fit a GPU's blocks
    tables: Callable[[int], "Tables | None"] = lambda count: None  # of turns by less than 256 ``count`` steps

    def turn(self, keys: mx.array, delta: mx.array) -> mx.array:
        """Move keys ``[B, H, n, D]`` by ``delta`` ``[B, H, n]`` positions, in float32."""
        # on CUDA, mx.fast.rope turns by wrong angles where one of several offsets is negative
        mirror = mx.where(delta[..., None] < 0, self.mirror, 1.0)
        turned = self._each(keys.astype(mx.float32) / self.scale * mirror, mx.abs(delta).astype(mx.int32))
        return (turned * mirror).astype(keys.dtype)

    def turn_back(self, keys: mx.array, steps: mx.array) -> mx.array:
        """Move keys ``[B, H, n, D]`` back by ``steps`` ``[B, H, n]`` positions, none negative, in float32.

        What ``turn`` gives for ``-steps``, in half the operations.
        """
        turned = self._each(keys.astype(mx.float32) / (self.scale * self.mirror), steps)
        return (turned * self.mirror).astype(keys.dtype)

    def images(self, steps: mx.array) -> mx.array:
        """What becomes of all first channels of pairs, turned back by ``steps`` ``[1, 1, n]``: all of a turn.

        ``[1, 1, n, D]``.
        """
        firsts = (self.mirror > 0).astype(mx.float32)
        return self.turn_back(mx.broadcast_to(firsts, (1, 1, steps.size, firsts.size)), steps)

    def _each(self, keys: mx.array, positions: mx.array) -> mx.array:
        """The module's turn of each key ``[B, H, n, D]`` for its own position ``[B, H, n]``."""
        each = keys.reshape(positions.size, 1, 1, -1)
        if self.beside > 1:
            each = mx.repeat(each, self.beside, axis=2)
        return self.rope(each, offset=positions.reshape(-1))[:, :, :1].reshape(keys.shape)

    def placed(self, keys: mx.array, steps: mx.array, most: int, *, whole: bool = False) -> mx.array:
        """As ``turn_back`` by steps that are less than ``most``; a kernel does it where one runs.

        ``whole``: the steps are known to lie row by row, so that no token asks for it.
        """
        found = kernels.turned(keys, steps, lambda: self.turns(1 << (most // NEAR).bit_length()), whole=whole)
        if found is None and mx.default_device() == mx.cpu:
            # where a cosine and a sine for each number of a key would take six times as long
            tables = self.tables(1 << max(most // NEAR, FAR - 1).bit_length())
            found = None if tables is None else _looked_up(tables, keys, steps)
        return self.turn_back(keys, steps) if found is None else found

    def placed_together(self, keys: Sequence[mx.array], steps: mx.array, most: int) -> list[mx.array] | None:
        """The same for layers made alike, as of ``kernels.turned_together``; None: no kernel does it."""
        return kernels.turned_together(keys, steps, lambda: self.turns(1 << (most // NEAR).bit_length()))

    def averaged(self, start: Any, count: int) -> mx.array:
        """The mean of the turns by ``start`` to ``start + count - 1``, ``[D, D]``: x times this is x turned.

        ``start`` is a number, or one for each sequence ``[B, 1, 1]``: then ``[B, D, D]``.

        A turn mixes the two channels of a pair alone, so the images of two vectors, all first channels and
        all second ones, hold every number of the matrix.
        """
        width = self.mirror.shape[0]
        mixed = self.turn(mx.eye(width)[None, None], mx.ones((1, 1, width), mx.int32))[0, 0] != 0
        halves = mx.stack([self.mirror > 0, self.mirror < 0]).astype(mx.float32)[None, :, None]
        places = start + mx.arange(count, dtype=mx.int32)
        batch = places.shape[0] if places.ndim > 1 else 1
        turned = self.turn(
            mx.broadcast_to(halves, (batch, 2, count, width)), mx.broadcast_to(places, (batch, 2, count))
        )
        halfway = mx.mean(turned, axis=2)[:, :, None]
        found = mx.where(mixed, mx.where(self.mirror[:, None] > 0, halfway[:, 0], halfway[:, 1]), 0.0)
        return found if places.ndim > 1 else found[0]


def _looked_up(tables: Tables, keys: mx.array, steps: mx.array) -> mx.array:
    """As ``Rotary.turn_back``: a turn is one of the first table after one of the second."""
    near, near_sine = (table[steps % NEAR] for table in tables.near)
    far, far_sine = (table[steps // NEAR] for table in tables.far)
    cosine, sine = far * near - far_sine * near_sine, far_sine * near + far * near_sine
    first, second = tables.channels
    x, y = keys[..., first].astype(mx.float32), keys[..., second].astype(mx.float32)
    turned = x * cosine + y * sine, y * cosine - x * sine
    join = mx.concatenate if first.step == 1 else mx.stack
    return join([*turned], axis=-1).reshape(keys.shape).astype(keys.dtype)


def statistics(columns: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """What a method holds of rows, without what compact positions do."""
    return {name: column for name, column in columns.items() if name != STEPS}


def closed_up(rows: Rows, gone: mx.array) -> Rows:
    """The rows with those that stay nearer by each older one of those that go, booleans ``[B, H, n]``."""
    return _stepped(rows, _nearer(rows.position, rows.columns[STEPS], gone))


def closed_up_to(stay: kernels.Kept, position: mx.array, steps: mx.array) -> kernels.Kept:
    """What stays of a cut in place, with its steps; positions and steps ``[B, H, n]`` are those of before."""
    gone = mx.put_along_axis(mx.zeros(position.shape, mx.bool_), stay.slots, mx.array(True), axis=2)
    nearer = moved(_nearer(position, steps, gone), stay.slots)
    return stay._replace(columns={**stay.columns, STEPS: nearer})


def _nearer(position: mx.array, steps: mx.array, gone: mx.array) -> mx.array:
    """The steps ``[B, H, n]`` with one more for each older row that goes."""
    order = mx.argsort(position, axis=2)
    older = mx.cumsum(mx.take_along_axis(gone, order, axis=2).astype(mx.int32), axis=2)
    return mx.put_along_axis(steps, order, mx.take_along_axis(steps, order, axis=2) + older, axis=2)


def closed_up_over(rows: Rows, slot: mx.array) -> Rows:
    """The same where of every head the one row at ``slot`` ``[B, H, 1]`` goes."""
    return _stepped(rows, steps_over(rows.position, rows.columns[STEPS], slot))


def steps_over(position: mx.array, steps: mx.array, slot: mx.array) -> mx.array:
    """The steps ``[B, H, n]`` that make it so."""
    return steps + (position > mx.take_along_axis(position, slot, axis=2))


def _stepped(rows: Rows, steps: mx.array) -> Rows:
    return rows._replace(columns={**rows.columns, STEPS: steps})


def rotary_of(rope: Rope, width: int) -> Rotary:
    """Read what a rotary module does, and check that it can turn a key again.

    Args:
        rope: the model's own module.
        width: head dimension D.

    Raises:
        ValueError: where turning by a and then by b is not turning by a + b.
    """
    try:
        rotary = _read(rope, width)
        wrong = next((turn for turn in PROBES if not _adds_up(rotary, width, *turn)), None)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"positions='compact' cannot be right for {type(rope).__name__}: it does not take an offset for"
            f" each key ({error}); use positions='absolute'"
        ) from error
    if wrong is not None:
        start, delta = wrong
        raise ValueError(
            f"positions='compact' cannot be right for {type(rope).__name__}: turning a key from"
            f" position {start} by {delta} does not give the key at {start + delta};"
            " use positions='absolute'"
        )
    return rotary


def _read(rope: Rope, width: int) -> Rotary:
    """What the module does at 0, and which channels it turns together."""
    axes = mx.eye(width)[None, :, None]
    scale = mx.diag(rope(axes, offset=0)[0, :, 0])
    mixed = mx.abs(rope(axes, offset=1)[0, :, 0]) * (1 - mx.eye(width))
    partner = mx.where(mx.max(mixed, axis=1) > 0, mx.argmax(mixed, axis=1), mx.arange(width))
    mirror = mx.where(partner < mx.arange(width), -1.0, 1.0)
    # tables are made by one that has none: no circle of references holds them once nobody does
    rotary = Rotary(rope, scale, mirror, cast(Any, None), _beside(int(np.sum(np.array(mirror) < 0))))
    turns = functools.cache(lambda count: _turns(rotary, partner, count))
    tables = functools.cache(lambda count: _tables(turns(count)))
    flat = functools.cache(lambda count: _flat(turns(count)))
    return rotary._replace(turns=flat, tables=tables)


def _beside(pairs: int) -> int:
    """How many tokens a call has at least, so that MLX's block for ``pairs`` of channels is not too deep.

    MLX (0.32.4) doubles the threads for pairs, tokens and sequences in turn until there are 1,024, and CUDA
    refuses a launch with more than 64 for the sequences: 128 of one token each, with fewer than 16 pairs.
    """
    if not (mx.cuda.is_available() and mx.default_device() == mx.gpu):
        return 1
    return max(1, 2 * THREADS // PLANES >> pairs.bit_length()) if pairs else 1


def _turns(rotary: Rotary, partner: mx.array, count: int) -> kernels.Turns:
    """Turns back by less than 256 ``count`` steps, as tables for a kernel."""
    # an unpaired channel is a pair of its own, of cosine 1 and sine 0
    second = np.array(partner, np.int32)
    first = np.flatnonzero(np.arange(second.size) <= second)
    channels = mx.array(np.stack([first, second[first]]).astype(np.int32))

    def table(steps: mx.array) -> mx.array:
        turned = rotary.images(steps[None, None])[0, 0]
        sine = mx.where(channels[0] == channels[1], 0.0, -turned[:, channels[1]])
        return mx.stack([turned[:, channels[0]], sine], axis=-1)

    near, far = mx.arange(NEAR, dtype=mx.int32), mx.arange(count, dtype=mx.int32)
    return channels, table(near), table(NEAR * far)


def _flat(turns: kernels.Turns) -> kernels.Turns:
    """As kernels take them, so that no token asks for it."""
    channels, near, far = turns
    return channels.reshape(-1), near.reshape(-1), far.reshape(-1)


def _tables(turns: kernels.Turns) -> Tables | None:
    """The same as columns of their own; None where channels stand in their pairs without a rule.

    They are evaluated, once for 32,768 tokens and once for each doubling: threads share them.
    """
    channels, *tables = turns
    pairs = channels.shape[1]
    for step, away in ((1, pairs), (2, 1)):
        first = step * np.arange(pairs)
        if np.array_equal(np.array(channels), np.stack([first, first + away])):
            near, far = ((mx.contiguous(table[..., 0]), mx.contiguous(table[..., 1])) for table in tables)
            mx.eval(near, far)
            runs = slice(0, step * pairs, step), slice(away, away + step * pairs, step)
            return Tables(runs, near, far)
    return None


def _adds_up(rotary: Rotary, width: int, start: int, delta: int) -> bool:
    """Whether turning by ``start`` and then by ``delta`` is turning by their sum, for two keys at once."""
    probe = mx.random.normal((2, 1, 1, width), key=mx.random.key(0))
    once = rotary.rope(probe, offset=start + delta).reshape(1, 1, 2, width)
    there = rotary.rope(probe, offset=start).reshape(1, 1, 2, width)
    twice = rotary.turn(there, mx.full((1, 1, 2), delta, mx.int32))
    return bool(mx.all(mx.abs(once - twice) <= 2e-3 * mx.abs(once).max()).item())
