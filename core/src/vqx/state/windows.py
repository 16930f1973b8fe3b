"""The latest queries of layers made alike, where a score looks at several of them: one array for all layers.

To put a token's query behind those of each layer would ask for a launch a layer; so it is one or two.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from vqx import kernels
from vqx.state.layer import Layer, Places, Seen
from vqx.state.positions import Rotary


class Windows(NamedTuple):
    """W queries of each of L layers."""

    queries: mx.array  # [L * B, H * G, W, D], as attention had them
    scale: float
    origin: Places | None = None  # [1, W], as of Seen

    def longer(self, latest: Sequence[mx.array], rows: int) -> "Windows":
        """Once the ``latest`` came, L arrays ``[B, H * G, S, D]``, each of the last ones of so many rows."""
        count = latest[0].shape[2]
        queries = mx.concatenate([self.queries[:, :, count:], kernels.joined(latest)], axis=2)
        if self.origin is None:
            return self._replace(queries=queries)
        came = np.arange(rows - count, rows, dtype=np.int32)[None]
        return Windows(queries, self.scale, np.concatenate([self.origin[:, count:], came], axis=1))

    def placed(self, rotary: Rotary | None, rows: int) -> mx.array:
        """The queries as if rotated for the last of so many rows."""
        if self.origin is None or rotary is None:
            return self.queries
        turn = mx.array(rows + np.arange(-self.origin.shape[1], 0) - self.origin[0], mx.int32)
        return rotary.turn(self.queries, mx.broadcast_to(turn, self.queries.shape[:3]))

    def seen(self, place: int, batch: int, heads: int) -> Seen:
        """Those of one of the layers."""
        own = self.queries[place * batch : (place + 1) * batch]
        return Seen(own.reshape(batch, heads, -1, *own.shape[2:]), self.scale, origin=self.origin)


def windows(layers: Sequence[Layer]) -> Windows:
    """The queries that layers made alike have seen."""
    seen = [layer.seen for layer in layers if layer.seen is not None]
    queries = kernels.joined([each.queries for each in seen])
    batch, _, _, *own = queries.shape
    return Windows(queries.reshape(batch, -1, *own), seen[0].scale, seen[0].origin)
