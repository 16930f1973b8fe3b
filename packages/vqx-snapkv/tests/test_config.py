"""What SnapKV refuses at construction."""

from typing import Any

import pytest
from vqx_snapkv import SnapKVConfig


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
        ({"window": 0}, "window=0: give an integer of at least 1"),
        (
            {"budget": 36},
            "budget=36 leaves no room beside n_sink=4 and window=32; give a budget of at least 37",
        ),
        ({"kernel": 0}, "kernel=0: give an integer of at least 1"),
        ({"kernel": 6}, "kernel=6: give an odd number"),
        ({"pool": "sum"}, "pool='sum' is not known; choose one of 'mean', 'max', None"),
        ({"group": "logits"}, "group='logits' is not known; choose one of 'mean', 'max'"),
        ({"heads": "all"}, "heads='all' is not known; choose one of 'each', 'layer'"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        SnapKVConfig(**{"budget": 64, **given})
    assert words in str(refused.value)


def test_the_least_budget_is_one_row_beside_the_window() -> None:
    assert SnapKVConfig(budget=37).budget == 37
