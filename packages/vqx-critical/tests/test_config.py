"""What CriticalKV refuses."""

from typing import Any

import mlx.nn as nn
import pytest
from vqx import LayerInfo, Method, Options, accumulated
from vqx.state.cache import EvictingCache
from vqx.testing import Shape, attending, feed, stream
from vqx_critical import CriticalConfig
from vqx_critical.method import build, wrap


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"window": 0}, "window=0: give an integer of at least 1"),
        ({"epsilon": -1.0}, "epsilon=-1.0: give a number of at least 0"),
        ({"first_stage": 1.5}, "first_stage=1.5: give a share of the budget from 0 to 1"),
        ({"first_stage": -0.5}, "first_stage=-0.5: give a share of the budget from 0 to 1"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        CriticalConfig(**{"budget": 64, **given})
    assert words in str(refused.value)


def test_a_window_without_a_base_needs_room() -> None:
    with pytest.raises(ValueError, match="budget=36 leaves no room beside n_sink=4 and window=32"):
        build(CriticalConfig(budget=36), [LayerInfo(0, "model", attending())])


def test_a_layer_without_an_output_projection_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"layer 3: .*o_proj.*none was found; use the method inside it alone"
    ):
        build(CriticalConfig(budget=64), [LayerInfo(3, "model")])


def test_latent_rows_are_refused() -> None:
    attention = attending()
    attention.kv_lora_rank = 6
    with pytest.raises(ValueError, match="this attention makes its values from the latent rows held"):
        build(CriticalConfig(budget=64), [LayerInfo(0, "model", attention)])


def test_an_adapter_around_the_projection_is_refused() -> None:
    attention = attending()
    attention.o_proj = nn.Sequential(attention.o_proj)
    with pytest.raises(ValueError, match="this one is Sequential; fuse adapters into the model first"):
        build(CriticalConfig(budget=64), [LayerInfo(0, "model", attention)])


def test_a_projection_of_another_shape_is_refused_at_the_first_token() -> None:
    attention = attending(Shape(heads=3, group=1))
    base = Method(accumulated(), 16, 1, 2)
    (method,) = wrap(CriticalConfig(budget=64), [LayerInfo(0, "model", attention)], [base])
    with pytest.raises(ValueError, match="o_proj reads 3 heads of 6, which are no multiple of the 2"):
        feed(EvictingCache(method, Options(queries="model")), stream("gaussian"), [1])
