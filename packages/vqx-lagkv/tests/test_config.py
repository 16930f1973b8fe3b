"""What LagKV refuses, and the lag it takes."""

from typing import Any

import pytest
from vqx_lagkv import LagKVConfig


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        (
            {"budget": 7},
            "budget=7 leaves no room beside n_sink=4 and 2 * lag - 1=3; give a budget of at least 8",
        ),
        ({"lag": 9}, "budget=20 leaves no room beside n_sink=4 and 2 * lag - 1=17"),
        ({"lag": 1}, "lag=1: give an integer of at least 2"),
        ({"lag": 2.0}, "lag=2.0: give an integer of at least 2"),
        ({"n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        LagKVConfig(**{"budget": 20, **given})
    assert words in str(refused.value)


@pytest.mark.parametrize(("budget", "lag"), [(8, 2), (20, 4), (256, 63), (516, 128), (4096, 128)])
def test_the_lag_is_the_papers_where_the_budget_has_room(budget: int, lag: int) -> None:
    assert LagKVConfig(budget=budget).lag == lag
