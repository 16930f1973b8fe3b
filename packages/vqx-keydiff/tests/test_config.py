"""What KeyDiff refuses."""

from typing import Any

import pytest
from vqx_keydiff import KeyDiffConfig


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
        ({"recent": 16}, "budget=20 leaves no room beside n_sink=4 and recent=16"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        KeyDiffConfig(**{"budget": 20, **given})
    assert words in str(refused.value)
