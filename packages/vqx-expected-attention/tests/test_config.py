"""What Expected Attention refuses, and what it builds."""

from typing import Any

import pytest
from vqx import LayerInfo, Options
from vqx.testing import cache_of
from vqx_expected_attention import ExpectedAttentionConfig
from vqx_expected_attention.method import build


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"recent": 16}, "budget=20 leaves no room beside n_sink=4 and recent=16"),
        ({"future": 0}, "future=0: give an integer of at least 1"),
        ({"value_norm": 2}, "value_norm=2 is not known; choose one of True, False"),
        ({"epsilon": -0.1}, "epsilon=-0.1: give a number of at least 0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        ExpectedAttentionConfig(**{"budget": 20, **given})
    assert words in str(refused.value)


def test_token_cadence_is_refused() -> None:
    with pytest.raises(ValueError, match="cadence='token'"):
        cache_of("expected-attention", Options(queries="model", cadence="token"), budget=20)


def test_every_layer_gets_the_guards() -> None:
    methods = build(ExpectedAttentionConfig(budget=20, recent=2), [LayerInfo(0, "model")] * 3)
    assert [(each.budget, each.n_sink, each.recent) for each in methods] == [(20, 4, 2)] * 3
