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


def mean_over(group: Any) -> Callable[[mx.array], mx.array]:
    """The mean over the processes of a group, which hold equal parts."""

    def across(score: mx.array) -> mx.array:
        mean: mx.array = mx.distributed.all_sum(score, group=group) / group.size()
        return mean

    return across


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
