"""What R-KV refuses."""

from typing import Any

import pytest
from vqx_r_kv import RKVConfig


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 12}, "budget=12 leaves no room beside n_sink=4 and window=8"),
        ({"window": 0}, "window=0: give an integer of at least 1"),
        ({"kernel": 4}, "kernel=4: give an odd number"),
        ({"mix": 1.5}, "mix=1.5: give a number from 0 to 1"),
        ({"mix": float("nan")}, "mix=nan: give a number from 0 to 1"),
        ({"threshold": True}, "threshold=True: give a number from 0 to 1"),
        ({"group": "sum"}, "group='sum' is not known; choose one of 'max', 'mean'"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        RKVConfig(**{"budget": 20, **given})
    assert words in str(refused.value)
