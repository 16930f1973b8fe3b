"""What protection refuses at construction."""

from typing import Any

import pytest
from vqx import LayerInfo, Method, accumulated
from vqx_protect import ProtectConfig
from vqx_protect.method import wrap


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"keep": "some"}, "keep='some' is not known; choose one of 'all', 'share'"),
        ({"spans": ((3, 3),)}, "span (3, 3): give two token positions"),
        ({"spans": ((-1, 3),)}, "span (-1, 3): give two token positions"),
        ({"spans": (7,)}, "span 7: give two token positions"),
        (
            {"spans": ((2, 12), (10, 16))},
            "budget=16 leaves no room beside 16 rows of spans and sinks and recent=0;"
            " give a budget of at least 17, or keep='share'",
        ),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        ProtectConfig(**{"budget": 16, **given})
    assert words in str(refused.value)


def test_guards_of_the_base_count_too() -> None:
    config = ProtectConfig(budget=16, spans=[(4, 8)])  # type: ignore[arg-type]
    assert config.spans == ((4, 8),)
    base = Method(accumulated(), 16, n_sink=4, recent=8)
    with pytest.raises(ValueError, match="budget=16 leaves no room beside 8 rows of spans and sinks and rec"):
        wrap(config, [LayerInfo(0, "model")], [base])
    (method,) = wrap(config, [LayerInfo(0, "model")], [base._replace(recent=7, spans=((5, 6),))])
    assert method.spans == ((5, 6), (4, 8))


def test_a_share_fits_into_any_budget() -> None:
    assert ProtectConfig(budget=16, spans=((2, 500),), keep="share").spans == ((2, 500),)
