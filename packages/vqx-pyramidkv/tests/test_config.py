"""What PyramidKV refuses at construction."""

import math
from typing import Any

import pytest
from vqx_pyramidkv import PyramidKVConfig


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"budget": 12},
            "budget=12 leaves no room beside n_sink=4 and window=8; give a budget of at least 13",
        ),
        ({"window": 0}, "window=0: give an integer of at least 1"),
        ({"beta": 0.5}, "beta=0.5: give a number of at least 1"),
        ({"beta": -2}, "beta=-2: give a number of at least 0"),
        ({"beta": math.inf}, "beta=inf: give a number"),
        ({"kernel": 4}, "kernel=4: give an odd number"),
        ({"pool": "sum"}, "pool='sum' is not known; choose one of 'mean', 'max', None"),
        ({"group": "logits"}, "group='logits' is not known; choose one of 'mean', 'max'"),
        ({"heads": "all"}, "heads='all' is not known; choose one of 'each', 'layer'"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        PyramidKVConfig(**{"budget": 64, **given})
    assert words in str(refused.value)
