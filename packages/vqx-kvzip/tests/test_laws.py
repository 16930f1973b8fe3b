"""The laws of every method, for KVzip: a stream cannot be repeated, so a small model reads and repeats."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from vqx.testing import same_bits
from vqx_kvzip import compress

BUDGET, CONTEXT, END = 16, 40, 64
TOKENS = mx.random.randint(0, 97, (2, END), key=mx.random.key(3))


LETTERS = SimpleNamespace(encode=lambda text, **_: [ord(letter) % 97 for letter in text])
"""A tokenizer of one token a letter, without a chat template."""


@pytest.fixture(params=[1, 4], ids=lambda interval: f"every {interval}")
def interval(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def repeated(model: Any, interval: int, tokens: mx.array = TOKENS) -> list[Any]:
    """Caches that hold the context at its budget."""
    caches = vqx.make_cache(model, "kvzip", budget=BUDGET, interval=interval)
    compress(model, LETTERS, caches, tokens[:, :CONTEXT])
    return caches


def decoded(model: Any, caches: list[Any], tokens: mx.array = TOKENS) -> Iterator[int]:
    """The tokens behind the context, one by one; their positions."""
    for at in range(CONTEXT, END):
        mx.eval(model(tokens[:, at : at + 1], cache=caches))
        yield at


def kept(caches: list[Any]) -> list[np.ndarray]:
    return [np.sort(np.array(cache.position)) for cache in caches]


def test_the_budget_is_never_exceeded_and_no_row_comes_back(model: Any, interval: int) -> None:
    caches = repeated(model, interval)
    before = kept(caches)
    for at in decoded(model, caches):
        held = kept(caches)
        for cache, old, new in zip(caches, before, held, strict=True):
            assert cache.tokens_kept <= BUDGET + interval - 1
            assert cache.size() <= BUDGET + interval
            assert cache.offset == at + 1
            for was, now in zip(old.reshape(-1, old.shape[2]), new.reshape(-1, new.shape[2]), strict=True):
                assert set(now) <= {*was, at}
                assert {0, 1, 2, 3, at} <= set(now)
        before = held


def test_kept_rows_are_the_models_own_bit_for_bit(model: Any, interval: int) -> None:
    caches, plain = repeated(model, interval), [KVCache() for _ in model.layers]
    model(TOKENS[:, :CONTEXT], cache=plain)
    for _ in decoded(model, caches):
        pass
    for _ in decoded(model, plain):
        pass
    first = caches[0]  # the first layer's rows depend on tokens alone
    whole: Any = plain[0]
    for rows, offered in zip(first.keys_and_values(), (whole.keys, whole.values), strict=True):
        assert same_bits(rows, mx.take_along_axis(offered, first.position[..., None], axis=2))


def test_sequences_do_not_see_each_other(model: Any, interval: int) -> None:
    together = repeated(model, interval)
    for _ in decoded(model, together):
        pass
    for row in range(2):
        mine = TOKENS[row : row + 1]
        alone = repeated(model, interval, mine)
        for _ in decoded(model, alone, mine):
            pass
        for one, other in zip(kept(together), kept(alone), strict=True):
            assert np.array_equal(one[row], other[0])


def test_a_copy_continues_alike(model: Any, interval: int) -> None:
    caches = repeated(model, interval)
    twins = copy.deepcopy(caches)
    for _ in decoded(model, caches, mx.zeros_like(TOKENS)):
        pass
    for _ in decoded(model, twins):
        pass
    straight = repeated(model, interval)
    for _ in decoded(model, straight):
        pass
    for one, other, away in zip(twins, straight, caches, strict=True):
        assert all(map(same_bits, one.keys_and_values(), other.keys_and_values()))
        assert not same_bits(one.keys_and_values()[0], away.keys_and_values()[0])
