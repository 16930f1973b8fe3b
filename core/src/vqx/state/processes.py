"""The processes that share the heads of a layer, where something is decided over all of its heads."""

from typing import Any, NamedTuple

import mlx.core as mx


class Processes(NamedTuple):
    """A group of them, each with as many heads as the others."""

    group: Any  # mx.distributed.Group

    @property
    def rank(self) -> int:
        return int(self.group.rank())

    @property
    def size(self) -> int:
        return int(self.group.size())

    def mean(self, score: mx.array) -> mx.array:
        """The mean over the processes, of any shape."""
        total: mx.array = mx.distributed.all_sum(score, group=self.group)
        return total / self.size

    def every(self, lane: mx.array) -> mx.array:
        """Lanes ``[B, 1, n]`` behind one another in the order of the processes, ``[B, 1, size * n]``."""
        batch, _, n = lane.shape
        found: mx.array = mx.distributed.all_gather(lane, group=self.group)
        return found.reshape(self.size, batch, n).swapaxes(0, 1).reshape(batch, 1, -1)

    def own(self, lanes: mx.array) -> mx.array:
        """Of what ``every`` put together this process's part, ``[B, 1, n]``."""
        n = lanes.shape[2] // self.size
        return lanes[:, :, self.rank * n : (self.rank + 1) * n]
