"""What CaM refuses at construction."""

from typing import Any

import pytest
from vqx import Options
from vqx.testing import cache_of
from vqx_cam import CamConfig


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"merge_budget": -1}, "merge_budget=-1: give an integer of at least 0"),
        ({"merge_budget": 2.5}, "merge_budget=2.5: give an integer of at least 0"),
        ({"seed": -1}, "seed=-1: give an integer of at least 0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        CamConfig(**{"budget": 64, **given})
    assert words in str(refused.value)


def test_token_cadence_is_refused_unless_nothing_is_merged() -> None:
    token = Options(queries="keys", cadence="token")
    with pytest.raises(ValueError, match="merges values, block by block; use cadence='block'"):
        cache_of("cam", token, budget=12)
    assert cache_of("cam", token, budget=12, merge_budget=0).plan.method.merge is None
