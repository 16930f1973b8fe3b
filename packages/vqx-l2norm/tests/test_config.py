"""What the L2 norm refuses, and which layers it leaves whole."""

from typing import Any

import pytest
import vqx
from vqx import EvictingCache, LayerInfo, Options
from vqx.testing import feed, stream
from vqx_l2norm import L2NormConfig
from vqx_l2norm.method import build


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"recent": 16}, "budget=20 leaves no room beside n_sink=4 and recent=16"),
        ({"skip": -1}, "skip=-1: give an integer of at least 0"),
        ({"skip": 1.5}, "skip=1.5: give an integer of at least 0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        L2NormConfig(**{"budget": 20, **given})
    assert words in str(refused.value)


@pytest.mark.parametrize("cadence", ["block", "token"])
def test_the_first_layers_stay_whole_and_say_so(cadence: Any) -> None:
    numbers = (3, 7, 11, 15)  # of a model in which every fourth layer attends
    methods = build(L2NormConfig(budget=20), [LayerInfo(number, "model") for number in numbers])
    tokens = stream("gaussian")
    caches = [EvictingCache(method, Options(queries="model", cadence=cadence)) for method in methods]
    for cache in caches:
        feed(cache, tokens, [30, 1, 20, *[1] * 13])
    assert [cache.tokens_kept for cache in caches] == [64, 64, 20, 20]
    assert [cache.compression_ratio for cache in caches] == [1.0, 1.0, 3.2, 3.2]
    row = 2 * 2 * (16 + 6) * 4
    assert [cache.kept_bytes for cache in caches] == [64 * row, 64 * row, 20 * row, 20 * row]
    assert (caches[0].keys_and_values()[0] == tokens.keys).all()


def test_both_names_are_one_method() -> None:
    assert vqx.load("knorm").config is vqx.load("l2norm").config
