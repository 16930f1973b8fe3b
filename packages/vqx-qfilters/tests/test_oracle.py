"""Directions and kept rows equal those of plain loops in float64."""

from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import Options
from vqx.testing import Shape, cache_of, feed, remaining, stream
from vqx_qfilters.filters import directions, load

FILTERS = Path(__file__).with_name("two_heads.safetensors")
pytestmark = pytest.mark.filterwarnings("ignore:.* with recent=0 may evict:UserWarning")

BAND = 1e-5
"""Gap of products below which float32 may decide otherwise."""


def test_directions_are_the_oracles(oracle: ModuleType) -> None:
    rng = np.random.default_rng(3)
    layers = [
        [(rng.normal(size=(2, 3, s, 8)) + rng.normal(size=(2, 3, 1, 8))).astype(np.float32) for s in (30, 17)]
        for _ in range(4)
    ]
    texts = [[mx.array(layer[t]) for layer in layers] for t in range(2)]
    found = directions(texts)
    assert (found.shape, found.dtype) == ((4, 2, 8), mx.float16)
    for number, layer in enumerate(layers):
        for head in range(2):
            queries = np.concatenate([text[head] for text in layer], axis=1).astype(np.float64)
            np.testing.assert_allclose(np.array(found)[number, head], oracle.direction(queries), atol=1e-3)


@pytest.mark.parametrize("cadence", ["block", "token"])
@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        ([90], {}),
        ([90], {"n_sink": 0, "recent": 6}),
        ([3, 40, 17, *[1] * 20], {}),
        ([*[1] * 50], {"n_sink": 1}),
    ],
    ids=["whole", "recent", "chunks", "tokens"],
)
def test_kept_rows_are_the_oracles(
    oracle: ModuleType, cadence: Any, blocks: list[int], options: dict[str, Any]
) -> None:
    options = {"budget": 14, "recent": 0, **options}
    away = np.array(load(FILTERS).directions, np.float64)[0]
    compared = 0
    for name in ("gaussian", "topics", "duplicates", "dominant sink"):
        tokens = stream(name, 1, Shape(sum(blocks), batch=1))
        engine = Options(queries="model", cadence=cadence)
        cache = feed(cache_of("qfilters", engine, filters=FILTERS, **options), tokens, blocks)
        cuts = blocks if cadence == "block" else [1] * sum(blocks)
        for head, position in enumerate(remaining(cache).position[0]):
            keys = np.array(tokens.keys, np.float64)[0, head]
            right, narrowest = oracle.kept(keys, away[head], blocks=cuts, **options)
            if narrowest > BAND:
                compared += 1
                assert position.tolist() == right
    assert compared >= 4


def test_the_oracle_on_numbers_worked_out_by_hand(oracle: ModuleType) -> None:
    # two of three queries point along (1, 0), the third, shorter, against it
    queries = np.array([[[4.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]])
    assert oracle.direction(queries).tolist() == [-1.0, 0.0]
    keys = np.array([[1.0, 9.0], [3.0, 0.0], [2.0, 5.0]])
    assert oracle.kept(keys, np.array([-1.0, 0.0]), budget=2, n_sink=0, blocks=[3]) == ([1, 2], 1.0)
