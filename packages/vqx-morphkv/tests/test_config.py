"""What MorphKV refuses at construction."""

import warnings
from typing import Any

import pytest
from vqx import LayerInfo
from vqx_morphkv import MorphKVConfig, init_morphkv_state, morphkv_update_batched
from vqx_morphkv.method import build


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": True}, "budget=True: give an integer of at least 1"),
        ({"n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
        ({"window": 0}, "window=0: give an integer of at least 1"),
        ({"window": 2.0}, "window=2.0: give an integer of at least 1"),
        (
            {"n_sink": 20},
            "budget=20 leaves no room beside n_sink=20 and window=8; give a budget of at least 29",
        ),
        (
            {"n_sink": 0, "window": 21},
            "budget=20 leaves no room beside n_sink=0 and window=21; give a budget of at least 22",
        ),
        (
            {"window": 16},
            "budget=20 leaves no room beside n_sink=4 and window=16; give a budget of at least 21",
        ),
        ({"over": "new"}, "over='new' is not known; choose one of 'all', 'old'"),
        ({"fuse": "mean"}, "fuse='mean' is not known; choose one of 'sum', 'max'"),
        ({"group": "sum"}, "group='sum' is not known; choose one of 'mean', 'max', 'logits'"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        MorphKVConfig(**{"budget": 20, **given})
    assert words in str(refused.value)


def test_functions_refuse_what_the_config_refuses() -> None:
    with pytest.raises(ValueError, match="budget=12 leaves no room beside n_sink=4 and window=8"):
        init_morphkv_state(n_sink=4, budget=12, head_dim=8)
    nothing: tuple[Any, ...] = (None,) * 4
    with pytest.raises(ValueError, match="window=0"):
        morphkv_update_batched(*nothing, 0, 4, 0)


def test_the_least_budget_is_two() -> None:
    assert MorphKVConfig(budget=2, n_sink=0, window=1).budget == 2
    with pytest.raises(ValueError, match="budget=1 leaves no room"):
        MorphKVConfig(budget=1, n_sink=0, window=1)


def test_the_window_is_never_evicted_and_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        methods = build(MorphKVConfig(budget=20), [LayerInfo(0, "model"), LayerInfo(1, "keys")])
    assert [(method.recent, method.n_sink, method.scorer.window) for method in methods] == [(8, 4, 8)] * 2
