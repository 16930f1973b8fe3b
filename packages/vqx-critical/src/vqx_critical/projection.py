"""How much a row's value can move the layer's output: the L1 norm of W_O v, head by head."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

DENSE = nn.Linear, nn.ShardedToAllLinear
QUANTIZED = nn.QuantizedLinear, nn.QuantizedShardedToAllLinear
"""Projections that are read: of one process, or its part where several share the heads."""

TILE = 2**23
"""Numbers of projected values held at once (32 MiB of float32)."""


def outputs(attention: Any, number: int) -> Callable[[mx.array], mx.array]:
    """The function from values ``[B, H, S, Dv]`` to their mean norm over the query group, ``[B, H, S]``.

    Args:
        attention: the layer's attention module, whose ``o_proj`` is read when the function is called.
        number: the layer's number, for messages.

    Raises:
        ValueError: no module, or an output projection that is neither linear nor quantised.
    """
    if attention is None:
        raise ValueError(
            f"layer {number}: critical weighs values by the output projection (o_proj) of the model's"
            " attention, and none was found; use the method inside it alone"
        )
    if hasattr(attention, "kv_lora_rank"):
        raise ValueError(
            f"layer {number}: critical weighs values by the output projection, and this attention makes its"
            " values from the latent rows held; use the method inside it alone"
        )
    if type(attention.o_proj) not in (*DENSE, *QUANTIZED):
        raise ValueError(
            f"layer {number}: critical reads o_proj as nn.Linear or nn.QuantizedLinear, and this one is"
            f" {type(attention.o_proj).__name__}; fuse adapters into the model first"
        )

    def norms(values: mx.array) -> mx.array:
        batch, heads, length, width = values.shape
        project, hidden, fed = _by_head(attention.o_proj, width)
        group, rest = divmod(fed, heads)
        if rest or not group:
            raise ValueError(
                f"layer {number}: o_proj reads {fed} heads of {width}, which are no multiple of the {heads}"
                " key-value heads; use the method inside critical alone"
            )
        each = mx.repeat(values, group, axis=1)
        step = max(1, TILE // (batch * fed * hidden))
        tiles = [
            mx.abs(project(each[:, :, i : i + step]).astype(mx.float32)).sum(axis=-1)
            for i in range(0, length, step)
        ]
        return mx.concatenate(tiles, axis=2).reshape(batch, heads, group, length).mean(axis=2)

    return norms


def _by_head(layer: Any, width: int) -> tuple[Callable[[mx.array], mx.array], int, int]:
    """Values ``[B, Hq, S, Dv]`` through each head's columns of W_O; its outputs and its heads."""
    hidden, quantised = layer.weight.shape[0], isinstance(layer, QUANTIZED)
    inputs = layer.scales.shape[1] * layer.group_size if quantised else layer.weight.shape[1]
    heads = inputs // width if inputs % width == 0 else 0

    def part(array: mx.array) -> mx.array:
        return array.reshape(hidden, heads, -1).swapaxes(0, 1)

    def plain(values: mx.array) -> mx.array:
        return values @ part(_dequantised(layer) if quantised else layer.weight).swapaxes(-1, -2)

    def packed(values: mx.array) -> mx.array:
        biases = None if layer.get("biases") is None else part(layer.biases)
        how = {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}
        return mx.quantized_matmul(values, part(layer.weight), part(layer.scales), biases, **how)

    # a head's columns are packed alone where no group of the quantisation spans two heads
    return (packed if quantised and width % layer.group_size == 0 else plain), hidden, heads


def _dequantised(layer: nn.QuantizedLinear) -> mx.array:
    how = {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}
    return mx.dequantize(layer.weight, layer.scales, layer.get("biases"), **how)
