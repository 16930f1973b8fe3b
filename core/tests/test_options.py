"""Options refuse what makes no sense, in sentences that say what to do."""

import dataclasses
import re
from itertools import product
from typing import Any

import mlx.core as mx
import pytest
from vqx import EvictingCache, Method, Options, accumulated
from vqx.options import at_least, not_negative, one_of, room_beside


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"queries": "key"},
            "queries='key' is not known; choose one of None, 'model', 'keys', 'centred-keys'",
        ),
        ({"cadence": "chunk"}, "cadence='chunk' is not known; choose one of 'block', 'token'"),
        ({"prompt": None}, "prompt=None is not known; choose one of 'chunks', 'whole'"),
        ({"positions": "relative"}, "positions='relative' is not known; choose one of 'absolute', 'compact'"),
        ({"interval": 0}, "interval=0: give an integer of at least 1"),
        ({"interval": 2.0}, "interval=2.0: give an integer of at least 1"),
        ({"interval": True}, "interval=True: give an integer of at least 1"),
        ({"cadence": "token", "interval": 4}, "token cadence evicts once a token; use cadence='block'"),
        (
            {"cadence": "token", "prompt": "whole"},
            "token cadence evicts while the prompt is read; use cadence=",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Options(**given)


CHOICES = {
    "queries": ["keys", "centred-keys"],
    "cadence": ["block", "token"],
    "interval": [1, 3],
    "prompt": ["chunks", "whole"],
}


@pytest.mark.parametrize("values", list(product(*CHOICES.values())), ids=str)
def test_every_combination_runs_or_is_refused_when_built(values: tuple[Any, ...]) -> None:
    try:
        options = Options(**dict(zip(CHOICES, values, strict=True)))
    except ValueError:
        assert values[1] == "token"
        assert values[2] > 1 or values[3] == "whole"
        return
    cache = EvictingCache(Method(accumulated(), budget=5), options)
    rows = mx.random.normal((1, 1, 6, 4), key=mx.random.key(0))
    for length in (6, 1, 1, 1, 4, 1, 1):
        cache.update_and_fetch(rows[:, :, :length], rows[:, :, :length])
        mx.eval(cache.state)
    assert cache.tokens_kept <= 5 + options.interval - 1
    assert cache.tokens_seen == 15


def test_options_are_frozen_and_given_by_name() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().interval = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        Options("model")  # type: ignore[misc]


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True])
def test_counts_are_integers(value: object) -> None:
    with pytest.raises(ValueError, match=r"window=.*: give an integer of at least 0"):
        at_least("window", value, 0)
    at_least("window", 0, 0)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "1", None, True])
def test_numbers_are_finite_and_not_negative(value: object) -> None:
    with pytest.raises(ValueError, match=r"tau=.*: give a number of at least 0"):
        not_negative("tau", value)
    not_negative("tau", 0)
    not_negative("tau", 2.5)


def test_a_list_is_not_among_the_names_allowed() -> None:
    with pytest.raises(ValueError, match=r"mode=\['a'\] is not known"):
        one_of("mode", ["a"], ("a", "b"))


@pytest.mark.parametrize(("n_sink", "recent"), [(4, 4), (8, 0), (0, 8), (30, 0)])
def test_a_budget_must_leave_a_row_to_choose(n_sink: int, recent: int) -> None:
    least = n_sink + recent + 1
    with pytest.raises(
        ValueError, match=f"budget=8 leaves no room beside n_sink={n_sink} and grace={recent}.*{least}"
    ):
        room_beside(8, n_sink, recent, "grace")
    room_beside(least, n_sink, recent, "grace")


@pytest.mark.parametrize("given", [(0, 0, 0), (8, -1, 0), (8, 0, -1), (8.0, 0, 0)], ids=str)
def test_guards_are_counts(given: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="give an integer"):
        room_beside(*given)
