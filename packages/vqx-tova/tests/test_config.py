"""What TOVA refuses at construction."""

import warnings
from typing import Any

import pytest
from vqx import LayerInfo
from vqx_tova import TovaConfig, init_tova_state, tova_update_batched
from vqx_tova.method import build


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": True}, "budget=True: give an integer of at least 1"),
        ({"n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
        (
            {"n_sink": 20},
            "budget=20 leaves no room beside n_sink=20 and keep_newest=1; give a budget of at least 22",
        ),
        (
            {"n_sink": 19},
            "budget=20 leaves no room beside n_sink=19 and keep_newest=1; give a budget of at least 21",
        ),
        (
            {"n_sink": 20, "keep_newest": False},
            "budget=20 leaves no room beside n_sink=20 and keep_newest=0; give a budget of at least 21",
        ),
        ({"heads": "all"}, "heads='all' is not known; choose one of 'layer', 'each'"),
        ({"keep_newest": 3}, "keep_newest=3 is not known; choose one of True, False"),
        ({"keep_newest": "no"}, "keep_newest='no' is not known; choose one of True, False"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        TovaConfig(**{"budget": 20, **given})
    assert words in str(refused.value)


def test_functions_refuse_what_the_config_refuses() -> None:
    with pytest.raises(ValueError, match="budget=4 leaves no room beside n_sink=3 and keep_newest=1"):
        init_tova_state(n_sink=3, budget=4, head_dim=8)
    nothing: tuple[Any, ...] = (None,) * 4
    with pytest.raises(ValueError, match="heads='some' is not known"):
        tova_update_batched(*nothing, 0, 4, heads="some")  # type: ignore[arg-type]


def test_the_least_budget_is_one_where_nothing_is_shielded() -> None:
    assert TovaConfig(budget=1, n_sink=0, keep_newest=False).budget == 1
    with pytest.raises(ValueError, match="budget=1 leaves no room"):
        TovaConfig(budget=1, n_sink=0)


def test_the_default_is_the_papers_ranking_with_the_newest_row_shielded() -> None:
    config = TovaConfig(budget=20)
    assert (config.heads, config.keep_newest, config.n_sink) == ("layer", True, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        methods = build(config, [LayerInfo(0, "model"), LayerInfo(1, "keys")])
    assert [method.recent for method in methods] == [1, 1]
