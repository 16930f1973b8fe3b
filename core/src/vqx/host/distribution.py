"""Models over several processes: MLX splits a layer's heads, or the layers, and each holds its own rows."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from vqx.host.layers import own_caches


def group_of(attention: nn.Module | None) -> Any:
    """The processes (``mx.distributed.Group``) that share the heads of a layer; None where one has all."""
    parts = () if attention is None else attention.named_modules()
    groups = (getattr(part, "group", None) for _, part in parts)
    return next((group for group in groups if group is not None and group.size() > 1), None)


def share_of_layers(model: nn.Module, evicting: Sequence[int]) -> tuple[int, int]:
    """The number of the first layer that this process runs, and how many all have together.

    Raises:
        ValueError: layers with other caches beside, whose numbers in the whole model cannot be told.
    """
    text: Any = getattr(model, "model", model)
    if getattr(text, "pipeline_size", 1) == 1:
        return 0, len(evicting)
    if len(own_caches(model)) != len(evicting):
        raise ValueError(
            f"{type(model).__module__} is split by layers over several processes, and some of its layers hold"
            " other caches: which layer is which cannot be told"
        )
    return int(text.start_idx), int(model.args.num_hidden_layers)


def all_layers(first: int, count: int) -> Callable[[mx.array, Sequence[Any]], mx.array]:
    """From a number for each layer of this process, the ``first`` and those after it, to one for all layers.

    What this process's caches owe the others is sent before it waits for them.

    Args:
        count: layers of the whole model.
    """

    def gathered(own: mx.array, caches: Sequence[Any]) -> mx.array:
        mx.eval([cache.keys for cache in caches if cache.keys is not None])
        placed = mx.pad(own, (first, count - first - own.size))
        total: mx.array = mx.distributed.all_sum(placed)
        return total

    return gathered
