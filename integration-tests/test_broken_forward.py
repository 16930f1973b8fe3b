"""A forward that ends in the middle leaves every layer as it was before, or the next one is refused."""

import copy
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from subjects import caches_of, method
from tiny_models.build import tiny_model


class Broken(Exception):
    pass


def breaking(model: Any, layer: int, caches: list[Any], tokens: mx.array) -> None:
    """A forward that ends with an error after the attention of this layer."""
    part = model.layers[layer]
    whole = part.mlp
    part.mlp = lambda hidden: raised()
    try:
        with pytest.raises(Broken):
            model(tokens, cache=caches)
    finally:
        part.mlp = whole


def raised() -> Any:
    raise Broken


@pytest.mark.parametrize("engine", [{}, {"undo": 3}, {"cadence": "token"}, {"interval": 4}], ids=str)
@method
def test_a_forward_that_ended_in_the_middle_leaves_no_trace(method: str, engine: Any, tiny: Any) -> None:
    try:
        caches = caches_of(tiny.model, method, budget=24, **engine)
    except ValueError:
        assert engine, "every method runs at its defaults"
        return
    tokens = mx.random.randint(0, 97, (1, 60), key=mx.random.key(1))
    lengths = [30, 10, *[1] * 8, 2, *[1] * 4]
    unbroken = copy.deepcopy(caches)
    right = tiny.read(unbroken, tokens[:, : sum(lengths)], lengths)
    found, at = [], 0
    for number, length in enumerate(lengths):
        part = tokens[:, at : at + length]
        breaking(tiny.model, number % 2, caches, tokens[:, 59:] if number % 3 else part)
        found.append(tiny.read(caches, part, [length]))
        at += length
    assert mx.array_equal(mx.concatenate(found, axis=1), right).item()
    assert [cache.tokens_seen for cache in caches] == [cache.tokens_seen for cache in unbroken]


def test_layers_of_other_kinds_cannot_go_back_and_say_so() -> None:
    model = tiny_model("gemma3_text")
    caches = vqx.make_cache(model, "h2o", budget=16)
    evicting = [number for number, cache in enumerate(caches) if isinstance(cache, vqx.EvictingCache)]
    tokens = mx.random.randint(0, 60, (1, 20), key=mx.random.key(1))
    model(tokens, cache=caches)
    assert evicting[-1] < len(caches) - 1 or len(evicting) > 1
    breaking(model, evicting[0], caches, tokens[:, :1])
    with pytest.raises(ValueError, match="layers of other kinds cannot go back: start from fresh caches"):
        model(tokens[:, :1], cache=caches)
