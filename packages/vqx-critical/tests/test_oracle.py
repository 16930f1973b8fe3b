"""CriticalKV against loops in float64, and its projection against the layer itself."""

from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx import EvictingCache, LayerInfo, Options
from vqx.testing import Shape, attending, feed, remaining, stream
from vqx_critical import CriticalConfig
from vqx_critical.method import build
from vqx_critical.projection import outputs

BLOCKS = [[64], [7, 20, 1, 13, *[1] * 23]]


@pytest.mark.parametrize("blocks", BLOCKS, ids=len)
@pytest.mark.parametrize(
    "options",
    [
        {"budget": 24, "n_sink": 4, "window": 4},
        {"budget": 12, "n_sink": 0, "window": 2, "first_stage": 0.0},
        {"budget": 20, "n_sink": 1, "window": 8, "first_stage": 0.8, "epsilon": 0.05},
    ],
    ids=str,
)
def test_kept_rows_are_the_oracles(oracle: ModuleType, options: dict[str, Any], blocks: list[int]) -> None:
    config, attention, compared = CriticalConfig(**options, kernel=1), attending(), 0
    (method,) = build(config, [LayerInfo(0, "model", attention)])
    for seed in range(4):
        tokens = stream("topics", seed, Shape(batch=1))
        rows = remaining(feed(EvictingCache(method, Options(queries="model")), tokens, blocks))
        answers = oracle.kept(
            np.array(tokens.queries).reshape(2, 2, 64, 16).astype(np.float64),
            np.array(tokens.keys[0]).astype(np.float64),
            np.array(tokens.values[0]).astype(np.float64),
            np.array(attention.o_proj.weight).astype(np.float64),
            blocks=blocks,
            **{"first_stage": config.first_stage, "epsilon": config.epsilon, **options},
        )
        for head, (right, gap) in enumerate(answers):
            if gap > 1e-6:
                compared += 1
                assert rows.position[0, head].tolist() == right
    assert compared > 3


def test_values_change_what_is_kept() -> None:
    (method,) = build(CriticalConfig(budget=16, window=4), [LayerInfo(0, "model", attending())])
    tokens = stream("topics")
    flat = tokens._replace(values=mx.ones(tokens.values.shape))
    one, other = (
        remaining(feed(EvictingCache(method, Options(queries="model")), t, [64])) for t in (tokens, flat)
    )
    assert not np.array_equal(one.position, other.position)


@pytest.mark.parametrize(
    ("width", "quantised"),
    [
        (32, {}),
        (64, {"group_size": 64, "bits": 4}),
        (32, {"group_size": 64, "bits": 8}),
        (32, {"mode": "mxfp4"}),
    ],
    ids=str,
)
def test_norms_are_the_layers_own_output_head_by_head(width: int, quantised: dict[str, Any]) -> None:
    attention = attending(Shape(heads=2, group=2, value_width=width), hidden=64)
    if quantised:
        nn.quantize(attention, **quantised)
        assert isinstance(attention.o_proj, nn.QuantizedLinear)
    values = mx.array(np.random.default_rng(0).normal(size=(2, 2, 300, width)).astype(np.float32))
    norms = outputs(attention, 0)(values)
    alone = mx.zeros((2, 2, 300, 2, 2, 2, width))  # one query head's values, the others zero
    for h in range(2):
        for g in range(2):
            alone[:, h, :, g, h, g] = values[:, h]
    right = mx.abs(attention.o_proj(alone.reshape(2, 2, 300, 2, 4 * width))).sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(np.array(norms), np.array(right), rtol=1e-4)
