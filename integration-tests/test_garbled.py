"""Each fault that garbles long prompts is caught by the right cache beside it, and the right one is not.

The faults stand in ``studies/faults``; ``studies/garbled.py`` measures what each costs on the whole model.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx.state.positions import rotary_of

LENGTHS = [40] * 4 + [1] * 8
BUDGET, WINDOW = 48, 16
BAND = 1e-3
"""Nats of KL divergence per token; equal caches differ by less than a thousandth of it."""

FAULTS = [
    "cut inside the forward",
    "survivors only",
    "mask of the first head",
    "mask from the first row",
    "offset = kept",
    "shift by one",
    "wrong base",
]


@pytest.fixture(scope="module")
def faults() -> Iterator[ModuleType]:
    """The module of right and faulty caches."""
    folder = str(Path(__file__).parent / "studies")
    sys.path.insert(0, folder)
    try:
        import faults.caches as caches

        yield caches
    finally:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def tokens(texts: dict[str, list[int]]) -> mx.array:
    return mx.array([text[100 : 100 + sum(LENGTHS)] for text in texts.values()])


@pytest.fixture(scope="module")
def right(shallow: Any, tokens: mx.array) -> mx.array:
    """Log-probabilities with the method that all these caches share, by vqx: ``[B, S, vocabulary]``."""
    return _log_probabilities(shallow.read(_vqx(shallow, "absolute"), tokens, LENGTHS))


@pytest.fixture(scope="module")
def make(faults: ModuleType, shallow: Any) -> Callable[[str], list[Any]]:
    """One cache of this name for each layer."""
    own = shallow.model.layers[0].self_attn.rope

    def caches(name: str) -> list[Any]:
        rope = nn.RoPE(64, base=10_000) if name == "wrong base" else own
        return [faults.CACHES[name](BUDGET, WINDOW, rotary_of(rope, 64)) for _ in shallow.model.layers]

    return caches


def _vqx(shallow: Any, positions: str) -> list[Any]:
    options = {"budget": BUDGET, "window": WINDOW, "queries": "keys", "positions": positions}
    return vqx.make_cache(shallow.model, "morphkv", **options)


def _log_probabilities(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _divergence(right: mx.array, logits: mx.array) -> float:
    """KL divergence in nats per token, of the tokens after the first cut."""
    other = _log_probabilities(logits)[:, LENGTHS[0] :]
    right = right[:, LENGTHS[0] :]
    return (mx.exp(right) * (right - other)).sum(axis=-1).mean().item()


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(
    name: str,
    faults: ModuleType,
    make: Callable[[str], list[Any]],
    shallow: Any,
    tokens: mx.array,
    right: Any,
) -> None:
    with faults.own_masks():
        logits = shallow.read(caches := make(name), tokens, LENGTHS)
    assert all(cache.held == BUDGET < cache.seen for cache in caches)
    assert _divergence(right, logits) > BAND


def test_every_fault_of_the_study_is_planted_here(faults: ModuleType) -> None:
    assert {"right", "right, compact", *FAULTS} == set(faults.CACHES)


@pytest.mark.parametrize(("name", "positions"), [("right", "absolute"), ("right, compact", "compact")])
def test_a_right_cache_is_not_caught(
    name: str,
    positions: str,
    faults: ModuleType,
    make: Callable[[str], list[Any]],
    shallow: Any,
    tokens: mx.array,
) -> None:
    mine, caches = _vqx(shallow, positions), make(name)
    right = _log_probabilities(shallow.read(mine, tokens, LENGTHS))
    with faults.own_masks():
        logits = shallow.read(caches, tokens, LENGTHS)
    assert abs(_divergence(right, logits)) < BAND / 1000
    for ours, theirs in zip(mine, caches, strict=True):
        assert np.array_equal(np.sort(np.array(ours.position)), np.array(theirs.position))


def test_the_right_cache_is_a_full_one_whose_evicted_rows_are_hidden(
    faults: ModuleType, make: Callable[[str], list[Any]], shallow: Any, tokens: mx.array
) -> None:
    caches, full = make("right"), make("right")

    def hidden(cache: Any, own: Any, length: int) -> mx.array:
        query = mx.arange(cache.seen - length, cache.seen)[:, None]
        row = mx.arange(cache.seen)
        held = (row[:, None] == own.position[:, :, None]).any(axis=-1)
        seen = held[:, :, None] & (row <= query)
        return mx.repeat(seen, faults.GROUP, axis=1)

    for cache, own in zip(full, caches, strict=True):
        cache.budget = sum(LENGTHS)
        cache.mask = partial(hidden, cache, own)
    with faults.own_masks():
        for first, last in pairwise(accumulate(LENGTHS, initial=0)):
            logits = shallow.model(tokens[:, first:last], cache=caches)
            explicit = shallow.model(tokens[:, first:last], cache=full)
            assert mx.abs(explicit - logits).max() < 1e-3


def test_a_set_whose_newcomers_enter_at_zero_is_caught(shallow: Any, tokens: mx.array) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"h2o with recent=0")
        options = {"budget": BUDGET, "recent": 0, "queries": "keys", "cadence": "token"}
        frozen = vqx.make_cache(shallow.model, "h2o", **options)
    shallow.read(frozen, tokens, LENGTHS)
    right = vqx.make_cache(shallow.model, "h2o", budget=BUDGET)
    shallow.read(right, tokens, LENGTHS)
    for cache, other in zip(frozen, right, strict=True):
        assert np.array(cache.position).max(axis=2).min() == sum(LENGTHS) - 1  # the one of this forward
        assert np.sort(np.array(cache.position))[..., -2].max() == BUDGET - 1
        assert np.sort(np.array(other.position))[..., -2].min() == sum(LENGTHS) - 2
