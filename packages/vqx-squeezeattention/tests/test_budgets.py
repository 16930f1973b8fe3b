"""Groups and budgets of layers, against every possible grouping; then in a model."""

import itertools
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
import pytest
from vqx import LayerInfo, Method, accumulated
from vqx.build import chain_of, methods_for
from vqx.host.models import random_llama
from vqx_squeezeattention import SqueezeConfig
from vqx_squeezeattention.method import budgets, groups, wrap

LAYERS = [LayerInfo(number, "model") for number in range(4)]


def by_trying_all(similar: list[float]) -> tuple[set[int], float]:
    """The most similar of the three groups of least squared distance, over all ways to group layers."""
    found, least = set(), float("inf")
    for labels in itertools.product(range(3), repeat=len(similar)):
        parts = [[i for i, label in enumerate(labels) if label == part] for part in range(3)]
        if not all(parts):
            continue
        spread = sum(len(part) * float(np.var([similar[i] for i in part])) for part in parts)
        if spread < least - 1e-12:
            found, least = set(max(parts, key=lambda part: np.mean([similar[i] for i in part]))), spread
    return found, least


@pytest.mark.parametrize("seed", range(8))
def test_the_groups_are_the_best_of_all(seed: int) -> None:
    similar = np.random.default_rng(seed).beta(5, 1, size=3 + seed % 5).tolist()
    right, least = by_trying_all(similar)
    chosen = groups(similar)
    assert set(chosen[-1]) == right
    assert sorted(itertools.chain(*chosen)) == list(range(len(similar)))
    spread = sum(len(part) * float(np.var([similar[i] for i in part])) for part in chosen)
    assert spread == pytest.approx(least)


def test_the_most_similar_layers_get_their_percent_and_the_others_share_the_rest() -> None:
    similar = [0.2, 0.95, 0.6, 0.97, 0.96, 0.25]
    rows = budgets(similar, 100, 0.35)
    assert rows == [165, 35, 165, 35, 35, 165]
    assert sum(budgets(similar, 101, 0.3)) == 606
    assert budgets(similar, 101, 0.3) == [172, 30, 172, 30, 30, 172]
    assert budgets(similar, 100, 1.0) == [100] * 6


def test_equal_layers_are_still_parted_and_no_row_is_lost() -> None:
    assert sum(budgets([0.5] * 7, 64, 0.5)) == 7 * 64


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 97,
    }
    model = random_llama(sizes, mx.float32)
    for number, layer in enumerate(model.layers):  # attention that changes less and less
        layer.self_attn.o_proj.weight *= 40 / 3**number
    return model


def test_in_a_model_layers_keep_what_their_attention_asks_for(model: Any) -> None:
    tokens = mx.random.randint(0, 97, (1, 60), key=mx.random.key(1))
    caches = vqx.make_cache(model, "squeezeattention", budget=20, percent=0.4)
    for first, last in ((0, 40), *((i, i + 1) for i in range(40, 60))):
        mx.eval(model(tokens[:, first:last], cache=caches))
    kept = [cache.tokens_kept for cache in caches]
    assert kept == [cache.plan.method.budget for cache in caches]
    assert sum(kept) == 5 * 20
    assert kept[0] > 20 > kept[-1] == 8


def test_every_list_of_caches_decides_for_itself(model: Any) -> None:
    one, other = (vqx.make_cache(model, "squeezeattention", budget=20) for _ in range(2))
    assert len({id(cache.turn) for cache in one}) == 1
    assert one[0].turn is not other[0].turn


def test_fewer_layers_than_groups_keep_one_budget_each() -> None:
    config, base = SqueezeConfig(budget=16), Method(accumulated(), 16, 1, 2)
    assert wrap(config, LAYERS[:2], [base] * 2) == [base] * 2
    shared = wrap(config, LAYERS, [base] * 4)
    assert [method.share.least for method in shared if method.share] == [8] * 4


def test_a_method_that_sets_budgets_itself_is_refused() -> None:
    bases = [Method(accumulated(), rows, 1, 2) for rows in (20, 16, 16, 12)]
    with pytest.raises(ValueError, match="sets the budgets of the layers, and so does the method inside it"):
        wrap(SqueezeConfig(budget=16), LAYERS, bases)
    with pytest.raises(ValueError, match="squeezeattention sets the budgets of the layers itself"):
        methods_for(chain_of("squeezeattention"), {"budget": [16] * 4}, LAYERS)


def test_a_percent_that_leaves_no_room_is_refused_when_caches_are_built() -> None:
    with pytest.raises(ValueError, match="may leave a layer 4 of budget=40 rows: budget=4 leaves"):
        methods_for(chain_of("squeezeattention"), {"budget": 40, "percent": 0.1}, LAYERS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"percent": 0.0}, "percent=0.0: give a part of the budget, above 0 and at most 1"),
        ({"percent": 1.5}, "percent=1.5: give a part of the budget, above 0 and at most 1"),
        ({"percent": -1}, "percent=-1: give a number of at least 0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        SqueezeConfig(**{"budget": 64, **given})
    assert words in str(refused.value)
