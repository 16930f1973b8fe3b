"""Tokens generated between two cuts: each is written where there is room, its query held, and nothing else.

A layer is replaced as a whole at other steps; to do so for each of these would take longer than they do.
"""

from typing import NamedTuple

import mlx.core as mx

from vqx.state.layer import Layer
from vqx.state.positions import STEPS, Rotary
from vqx.state.rows import Rows, first


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

    @property
    def kept(self) -> int:
        """Rows that remain for the next token."""
        return self.rows

    def longer(self, key: mx.array, value: mx.array) -> "Run":
        """With a token more, ``[B, H, 1, D]``."""
        keys, values, rows, end, added, shown, queries, steps = self
        keys, values = keys[...], values[...]  # the arrays given stay as they are; memory is written in place
        keys[:, :, rows : rows + 1] = key
        values[:, :, rows : rows + 1] = value
        return Run(keys, values, rows + 1, end + 1, added + 1, shown, queries, steps)

    def filled(self, rotary: Rotary | None) -> tuple[mx.array, mx.array]:
        """What attention reads: ``[B, H, n, D]`` and ``[B, H, n, Dv]``."""
        keys, values, rows, end = self[:4]
        if rotary is not None and self.steps is not None:
            keys = rotary.placed(keys, self.steps, end, whole=True)
        return first(keys, values, rows)

    def asked(self, queries: mx.array, most: int) -> "Run":
        """With the query of its latest token; the last ``most`` are held (0: all)."""
        keys, values, rows, end, added, _, held, steps = self
        return Run(keys, values, rows, end, added, added, (*held, queries)[-most:], steps)

    def ended(self, layer: Layer) -> Layer:
        """The layer that it makes of the one before it, of which the buffers are its own."""
        rows, waiting, end = layer.rows, layer.waiting, layer.tokens_seen
        if waiting is not None and self.shown:
            waiting = waiting._replace(queries=self.queries, end=end + self.shown, known=None)
        return layer._replace(
            rows=Rows(self.keys, self.values, rows.position, rows.columns, rows.bare + self.added),
            tokens_seen=end + self.added,
            last=1,
            generated=layer.generated + self.added,
            waiting=waiting,
        )


def begun(layer: Layer) -> Run:
    """None of it so far."""
    rows, queries = layer.rows, () if layer.waiting is None else layer.waiting.queries
    steps = rows.columns.get(STEPS) if layer.evicted else None
    if steps is not None:
        steps = mx.pad(steps, [(0, 0), (0, 0), (0, rows.keys.shape[2] - steps.shape[2])])
    return Run(rows.keys, rows.values, rows.length, layer.tokens_seen, queries=queries, steps=steps)
