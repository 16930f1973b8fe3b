"""Ada-KV against loops in float64, and in a model."""

from types import ModuleType
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from vqx import EvictingCache, LayerInfo, Method, Options, accumulated
from vqx.build import chain_of, methods_for
from vqx.host.models import random_llama
from vqx.testing import Shape, cache_of, feed, remaining, stream
from vqx_ada import AdaConfig
from vqx_ada.method import wrap

MODEL = Options(queries="model")
BLOCKS = [[64], [7, 20, 1, 13, *[1] * 23]]


def by_head(cache: EvictingCache, row: int = 0) -> list[set[int]]:
    """The positions that remain for the next forward, head by head."""
    kept = remaining(cache)
    position, head = kept.position[row, 0], kept.columns["head"][row, 0]
    return [{*position[head == each].tolist()} for each in range(head.max() + 1)]


@pytest.mark.parametrize("blocks", BLOCKS, ids=len)
@pytest.mark.parametrize(
    "options",
    [
        {"budget": 16, "n_sink": 1, "window": 4},
        {"budget": 16, "n_sink": 0, "window": 2, "floor": 0.0},
        {"budget": 20, "n_sink": 4, "window": 3, "floor": 0.7},
    ],
    ids=str,
)
def test_kept_rows_are_the_oracles(oracle: ModuleType, options: dict[str, Any], blocks: list[int]) -> None:
    compared = uneven = 0
    for seed in range(6):
        tokens = stream("topics", seed, Shape(batch=1, heads=3))
        queries = tokens.queries * mx.array([3.0, 3.0, 1.0, 1.0, 0.2, 0.2])[:, None, None]
        cache = cache_of("ada", MODEL, kernel=1, **options)
        kept = by_head(feed(cache, tokens._replace(queries=queries), blocks))
        assert sum(map(len, kept)) == 3 * options["budget"]
        right, gap = oracle.kept(
            np.array(queries).reshape(3, 2, 64, 16).astype(np.float64),
            np.array(tokens.keys[0]).astype(np.float64),
            blocks=blocks,
            **{"floor": 0.2, **options},
        )
        if gap > 1e-6:
            compared += 1
            assert kept == right
            uneven += len({len(head) for head in kept}) > 1
    assert compared > 2
    assert uneven > 1


@pytest.mark.parametrize("name", ["duplicates", "small integers"])
def test_equal_scores_evict_the_oldest_as_they_do_without_it(name: str) -> None:
    """With the whole floor, on streams whose rows tie; the collapse that the plugin declares has none."""
    tokens = stream(name)
    base = Method(accumulated(), 16, 4, 5)
    (shared,) = wrap(AdaConfig(budget=16, floor=1.0), [LayerInfo(0, "model")], [base])
    one, other = (feed(EvictingCache(m, MODEL), tokens, BLOCKS[1]) for m in (base, shared))
    for row in range(2):
        assert by_head(other, row) == [{*lane.tolist()} for lane in remaining(one).position[row]]


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 97,
    }
    model = random_llama(sizes, mx.float32)
    for layer in model.layers:
        layer.self_attn.q_proj.weight *= 6
        layer.self_attn.k_proj.weight *= 6
    return model


def test_before_the_first_cut_output_is_the_models_own_bit_for_bit_and_after_it_rows_are_bounded(
    model: Any,
) -> None:
    tokens = mx.random.randint(0, 97, (2, 80), key=mx.random.key(1))
    caches, plain = vqx.make_cache(model, "ada", budget=24, window=4), [KVCache() for _ in range(2)]
    for first, last in ((0, 20), (20, 24), *((i, i + 1) for i in range(24, 60))):
        one, other = (model(tokens[:, first:last], cache=each) for each in (caches, plain))
        mx.eval(one, other)
        assert bool(mx.array_equal(one, other)) == (last <= 25)
        for cache in caches:
            assert cache.tokens_kept == min(last, 24)
            assert cache.position.shape[2] * cache.position.shape[1] == 2 * min(last, 25)
    assert len({len(head) for cache in caches for row in (0, 1) for head in by_head(cache, row)}) > 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queries": "centred-keys"}, "heads that share a budget need queries='model'"),
        ({"cadence": "token"}, "need cadence='block'"),
        ({"positions": "compact"}, "need positions='absolute'"),
    ],
)
def test_what_it_cannot_do_is_refused(model: Any, options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vqx.make_cache(model, "ada", budget=64, **options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"floor": 1.5}, "floor=1.5: give a part of the budget from 0 to 1"),
        ({"floor": -0.5}, "floor=-0.5: give a part of the budget from 0 to 1"),
        ({"kernel": 2}, "kernel=2: give an odd number"),
        ({"window": 0}, "window=0: give an integer of at least 1"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        AdaConfig(**{"budget": 64, **given})
    assert words in str(refused.value)


def test_a_window_without_a_base_needs_room() -> None:
    with pytest.raises(ValueError, match="budget=36 leaves no room beside n_sink=4 and window=32"):
        methods_for(chain_of("ada"), {"budget": 36}, [LayerInfo(0, "model")])
