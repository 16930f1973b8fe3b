"""What H2O refuses at construction, and what it warns of."""

import warnings
from typing import Any

import pytest
from vqx import LayerInfo
from vqx_h2o import H2OConfig, h2o_update_batched, init_h2o_state
from vqx_h2o.method import build

LAYERS = [LayerInfo(0, "model"), LayerInfo(1, "keys")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": True}, "budget=True: give an integer of at least 1"),
        ({"budget": 8.0}, "budget=8.0: give an integer of at least 1"),
        ({"n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
        ({"recent": -1}, "recent=-1: give an integer of at least 0"),
        ({"grace": -1}, "grace=-1: give an integer of at least 0"),
        (
            {"n_sink": 4, "recent": 16},
            "budget=20 leaves no room beside n_sink=4 and recent=16; give a budget of at least 21",
        ),
        (
            {"n_sink": 4, "grace": 16},
            "budget=20 leaves no room beside n_sink=4 and grace=16; give a budget of at least 21",
        ),
        ({"budget": 8}, "budget=8 leaves no room beside n_sink=4 and recent=4; give a budget of at least 9"),
        ({"decay": 0.0}, "decay=0.0: give a number above 0 and at most 1"),
        ({"decay": -0.5}, "decay=-0.5: give a number above 0 and at most 1"),
        ({"decay": 1.01}, "decay=1.01: give a number above 0 and at most 1"),
        ({"decay": float("nan")}, "decay=nan: give a number above 0 and at most 1"),
        ({"decay": "0.9"}, "decay='0.9': give a number above 0 and at most 1"),
        ({"normalise": "sum"}, "normalise='sum' is not known; choose one of None, 'seen'"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        H2OConfig(**{"budget": 20, **given})
    assert words in str(refused.value)


def test_functions_refuse_what_the_config_refuses() -> None:
    with pytest.raises(ValueError, match="budget=4 leaves no room beside n_sink=2 and recent=2"):
        init_h2o_state(n_sink=2, budget=4, head_dim=8, recent=2)
    with pytest.raises(ValueError, match="decay=2"):
        h2o_update_batched(None, None, None, None, None, None, 0, 4, decay=2)  # type: ignore[arg-type]


def test_half_of_the_budget_is_recent_unless_told_otherwise() -> None:
    assert H2OConfig(budget=20).newest_safe == H2OConfig(budget=21).newest_safe == 10
    assert H2OConfig(budget=20, recent=3).newest_safe == 3
    assert H2OConfig(budget=20, recent=3, grace=5).newest_safe == 5


def test_the_least_budget_is_one() -> None:
    assert H2OConfig(budget=1, n_sink=0).newest_safe == 0


def test_the_form_that_freezes_is_warned_of_once_a_model() -> None:
    frozen = "recent=0 and grace=0 keeps the first tokens for good.*set recent"
    with pytest.warns(UserWarning, match=frozen) as seen:
        build(H2OConfig(budget=20, recent=0), LAYERS)
    assert len(seen) == 1


@pytest.mark.parametrize("given", [{}, {"recent": 1}, {"recent": 0, "grace": 1}])
def test_forms_that_move_on_are_not_warned_of(given: dict[str, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        methods = build(H2OConfig(budget=20, **given), LAYERS)
    assert [method.recent > 0 for method in methods] == [True, True]
