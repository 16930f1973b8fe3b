"""Tokens generated between two cuts: each is written where there is room, its query held, and nothing else.

A layer is replaced as a whole at other steps; to do so for each of these would take longer than they do.
"""

from typing import NamedTuple

import mlx.core as mx

from vqx.state.layer import Layer
from vqx.state.positions import STEPS, Rotary
from vqx.state.rows import Rows, first

TURNED = 2**24
"""Bytes of a layer's keys up to which those turned to compact positions are held beside them."""


class Run(NamedTuple):
    """What such tokens add to the layer before them."""

    keys: mx.array  # [B, H, capacity, D], as of Rows
    values: mx.array  # [B, H, capacity, Dv]
    rows: int  # filled
    end: int  # the position of the next token
    added: int = 0  # rows that are the run's own
    shown: int = 0  # of their tokens those whose queries were seen
    queries: tuple[mx.array, ...] = ()  # [B, H * G, 1, D] each, of those that wait
    steps: mx.array | None = None  # [B, H, capacity] by which keys are turned to be read; None: not
    turned: mx.array | None = None
    """``[B, H, capacity, D]``: keys so turned; the run's own stand nowhere else; None: not held."""

    @property
    def kept(self) -> int:
        """Rows that remain for the next token."""
        return self.rows

    def longer(self, key: mx.array, value: mx.array) -> "Run":
        """With a token more, ``[B, H, 1, D]``."""
        keys, values, rows, end, added, shown, queries, steps, turned = self
        # the arrays given stay as they are; memory is written in place
        read, values = (keys if turned is None else turned)[...], values[...]
        read[:, :, rows : rows + 1] = key
        values[:, :, rows : rows + 1] = value
        keys, turned = (read, None) if turned is None else (keys, read)
        return Run(keys, values, rows + 1, end + 1, added + 1, shown, queries, steps, turned)

    def filled(self, rotary: Rotary | None) -> tuple[mx.array, mx.array]:
        """What attention reads: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        keys, values, rows, end = self[:4]
        if self.turned is not None:
            keys = self.turned
        elif rotary is not None and self.steps is not None:
            keys = rotary.placed(keys, self.steps, end, whole=True)
        return first(keys, values, rows)

    def asked(self, queries: mx.array, most: int) -> "Run":
        """With the query of its latest token; the last ``most`` are held (0: all)."""
        keys, values, rows, end, added, _, held, steps, turned = self
        return Run(keys, values, rows, end, added, added, (*held, queries)[-most:], steps, turned)

    def ended(self, layer: Layer) -> Layer:
        """The layer that it makes of the one before it, of which the buffers are its own."""
        rows, waiting, end, keys = layer.rows, layer.waiting, layer.tokens_seen, self.keys
        if self.turned is not None and self.added:
            own = slice(self.rows - self.added, self.rows)
            keys = keys[...]
            keys[:, :, own] = self.turned[:, :, own]
        if waiting is not None and self.shown:
            waiting = waiting._replace(queries=self.queries, end=end + self.shown, known=None)
        return layer._replace(
            rows=Rows(keys, self.values, rows.position, rows.columns, rows.bare + self.added),
            tokens_seen=end + self.added,
            last=1,
            generated=layer.generated + self.added,
            waiting=waiting,
        )


def begun(layer: Layer, rotary: Rotary | None = None) -> Run:
    """None of it so far."""
    rows, turned, queries = layer.rows, None, () if layer.waiting is None else layer.waiting.queries
    steps = rows.columns.get(STEPS) if layer.evicted else None
    if steps is not None:
        steps = mx.pad(steps, [(0, 0), (0, 0), (0, rows.keys.shape[2] - steps.shape[2])])
        if rotary is not None and rows.keys.nbytes <= TURNED:
            turned = rotary.placed(rows.keys, steps, layer.tokens_seen, whole=True)
    end = layer.tokens_seen
    return Run(rows.keys, rows.values, rows.length, end, queries=queries, steps=steps, turned=turned)
