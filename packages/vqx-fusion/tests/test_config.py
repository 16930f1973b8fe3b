"""What the options of Fusion allow."""

from typing import Any

import pytest
from vqx_fusion import FusionConfig


def test_recent_rows_default_to_32_and_at_most_a_quarter() -> None:
    assert FusionConfig(budget=512).recent == 32
    assert FusionConfig(budget=40).recent == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local": 1.5}, "local=1.5: give a share from 0 to 1"),
        ({"local": -1}, "local=-1"),
        ({"beyond": "random"}, "beyond='random' is not known"),
        ({"recent": 60}, "leaves no room"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FusionConfig(budget=64, **options)
