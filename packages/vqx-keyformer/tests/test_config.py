"""What Keyformer refuses at construction, and what it warns of."""

import warnings
from typing import Any

import pytest
from vqx import LayerInfo
from vqx_keyformer import KeyformerConfig, init_keyformer_state, keyformer_update_batched
from vqx_keyformer.method import build

LAYERS = [LayerInfo(0, "model"), LayerInfo(1, "keys")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": True}, "budget=True: give an integer of at least 1"),
        ({"budget": "20"}, "budget='20': give an integer of at least 1"),
        ({"n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
        ({"recent": -1}, "recent=-1: give an integer of at least 0"),
        (
            {"n_sink": 4, "recent": 16},
            "budget=20 leaves no room beside n_sink=4 and recent=16; give a budget of at least 21",
        ),
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4 and recent=1; give a budget of at least 6"),
        ({"tau": -0.1}, "tau=-0.1: give a number of at least 0"),
        ({"tau_init": -1.0}, "tau_init=-1.0: give a number of at least 0"),
        ({"tau_end": -1.0}, "tau_end=-1.0: give a number of at least 0"),
        ({"tau_end": float("inf")}, "tau_end=inf: give a number of at least 0"),
        ({"tau": "1"}, "tau='1': give a number of at least 0"),
        ({"anneal_steps": -1}, "anneal_steps=-1: give an integer of at least 0"),
        ({"anneal_steps": 2.5}, "anneal_steps=2.5: give an integer of at least 0"),
        ({"seed": -1}, "seed=-1: give an integer of at least 0"),
        ({"noise": "both"}, "noise='both' is not known; choose one of 'rank', 'logit'"),
        ({"noise": "logit", "tau": 0.0}, "tau 0 with noise='logit' divides by zero; use noise='rank'"),
        ({"noise": "logit", "tau_init": 0.0}, "tau 0 with noise='logit' divides by zero"),
        ({"noise": "logit", "tau_end": 0}, "tau 0 with noise='logit' divides by zero"),
        ({"redraw": True}, "redraw=True needs noise='logit': noise that joins the ranking is frozen"),
        ({"redraw": 2}, "redraw=2 is not known; choose one of False, True"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        KeyformerConfig(**{"budget": 20, **given})
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [{"noise": "logit", "tau": 1.0, "tau_init": 0.0}, {"noise": "logit", "tau_end": 0, "anneal_steps": 0}],
)
def test_a_tau_of_zero_that_is_never_reached_is_allowed(given: dict[str, Any]) -> None:
    assert KeyformerConfig(budget=20, **given).temperature(10**6) == 1.0


def test_functions_refuse_what_the_config_refuses() -> None:
    with pytest.raises(ValueError, match="budget=4 leaves no room beside n_sink=2 and recent=2"):
        init_keyformer_state(n_sink=2, budget=4, head_dim=8, recent=2)
    nothing: tuple[Any, ...] = (None,) * 7
    with pytest.raises(ValueError, match="tau_end=-1"):
        keyformer_update_batched(*nothing, 0, 4, tau_end=-1)
    with pytest.raises(ValueError, match="anneal_steps=-1"):
        keyformer_update_batched(*nothing, 0, 4, anneal_steps=-1)


def test_three_tenths_of_the_budget_are_recent_unless_told_otherwise() -> None:
    assert KeyformerConfig(budget=20).recent == 6
    assert KeyformerConfig(budget=20, recent=0).recent == 0


def test_defaults_are_those_of_the_adapted_system_but_for_the_recent_rows() -> None:
    config = KeyformerConfig(budget=20)
    assert (config.noise, config.tau, config.seed) == ("rank", None, 0)
    assert (config.tau_init, config.tau_end, config.anneal_steps) == (1.0, 2.0, 256)


def test_an_empty_recent_window_is_warned_of_once_a_model() -> None:
    with pytest.warns(UserWarning, match="recent=0 evicts most new rows at once.*set recent") as seen:
        build(KeyformerConfig(budget=20, recent=0), LAYERS)
    assert len(seen) == 1


@pytest.mark.parametrize("given", [{}, {"recent": 1}, {"tau": 0.0}])
def test_forms_that_move_on_are_not_warned_of(given: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        methods = build(KeyformerConfig(budget=20, **given), LAYERS)
    assert [method.recent > 0 for method in methods] == [True, True]
