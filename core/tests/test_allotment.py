"""Layers that share their rows: what they see, and when they decide."""

from collections.abc import Callable, Sequence
from typing import Any

import vqx  # noqa: F401  (before mlx)

# isort: split

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from vqx import EvictingCache, Method, Options, Scorer
from vqx.host.layers import attention_of
from vqx.host.residuals import watch_residuals
from vqx.host.watching import watch_attention
from vqx.scorers import Share
from vqx.state.allotment import Allotment
from vqx.state.turn import Turn

NEWEST = Scorer(score=lambda held: 0.0)
BUDGETS = [6, 12, 9]
Caches = Callable[..., list[EvictingCache]]


@pytest.fixture
def model(tiny_llama: Callable[..., nn.Module]) -> nn.Module:
    model = tiny_llama(3)
    blocks = {n: (layer, attention_of(model, n)) for n, layer in enumerate(model.layers)}
    watch_residuals(model, [KVCache() for _ in model.layers], blocks)
    return model


@pytest.fixture
def caches() -> Caches:
    def make(
        asked: list[list[float]],
        chosen: Callable[[list[float]], list[int]] = lambda similar: BUDGETS,
        **options: Any,
    ) -> list[EvictingCache]:
        def budgets(similar: Sequence[float]) -> list[int]:
            asked.append([*similar])
            return chosen(asked[-1])

        share = Share(6, budgets, lambda index, rows: Method(NEWEST, rows, 1))
        together = Allotment(share, range(3))
        run = Options(queries="model", **options)
        held, turn = [], Turn()
        for n in range(3):
            held.append(EvictingCache(Method(NEWEST, 9, 1, share=share), run, number=n, allotment=together))
            held[n].turn = turn
            turn.join(held[n])
        return held

    return make


def tokens(count: int) -> mx.array:
    return mx.random.randint(0, 97, (2, count), key=mx.random.key(3))


def by_hand(model: nn.Module, given: mx.array) -> list[float]:
    """Mean cosine of the hidden state before and after each layer's attention."""
    hidden, answers = model.model.embed_tokens(given), []
    for layer in model.layers:
        after = hidden + layer.self_attn(layer.input_layernorm(hidden), "causal", None)
        x, y = np.array(hidden, np.float64), np.array(after, np.float64)
        cosine = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
        answers.append(float(cosine.mean()))
        hidden = layer(hidden, "causal")
    return answers


def test_layers_are_measured_over_the_prompt_and_decide_once(model: nn.Module, caches: Caches) -> None:
    asked: list[list[float]] = []
    held, given = caches(asked, prompt="whole"), tokens(30)
    for first, last in ((0, 11), (11, 20), *((i, i + 1) for i in range(20, 30))):
        mx.eval(model(given[:, first:last], cache=held), [cache.state for cache in held])
    assert len(asked) == 1
    np.testing.assert_allclose(asked[0], by_hand(model, given[:, :20]), rtol=1e-5)
    assert [cache.plan.method.budget for cache in held] == [cache.tokens_kept for cache in held] == BUDGETS
    assert {cache.allotment for cache in held} == {None}


def test_a_prompt_in_chunks_decides_before_its_first_cut(model: nn.Module, caches: Caches) -> None:
    asked: list[list[float]] = []
    held, given = caches(asked), tokens(30)
    for first, last in ((0, 5), (5, 12), (12, 22)):
        model(given[:, first:last], cache=held)
        assert len(asked) == (first == 12)
        assert [cache.tokens_seen for cache in held] == [last] * 3
    np.testing.assert_allclose(asked[0], by_hand(model, given[:, :12]), rtol=1e-5)
    # what offset and tokens_kept say is what is found
    assert [cache.size() for cache in held] == [b + 10 for b in BUDGETS]


def test_below_the_least_budget_nothing_is_decided_and_output_is_the_models_own(
    model: nn.Module, caches: Caches
) -> None:
    asked: list[list[float]] = []
    held, plain, given = caches(asked), [KVCache() for _ in range(3)], tokens(30)
    for at in range(7):
        one, other = (model(given[:, at : at + 1], cache=each) for each in (held, plain))
        assert mx.array_equal(one, other)
        assert asked == []
    model(given[:, 7:8], cache=held)
    assert len(asked) == 1
    np.testing.assert_allclose(asked[0], by_hand(model, given[:, :1]), rtol=1e-5)


def test_two_lists_of_caches_decide_apart(model: nn.Module, caches: Caches) -> None:
    asked: list[list[float]] = []
    for shift in (0, 10):
        held = caches(asked)
        for first, last in ((0, 12), (12, 13)):
            model(tokens(40)[:, shift + first : shift + last], cache=held)
    assert len(asked) == 2
    assert asked[0] != asked[1]


@pytest.mark.parametrize("lengths", [(14, 14), (14, 3), (2, 3)], ids=str)
def test_sequences_of_a_batch_are_measured_and_decided_as_alone(
    lengths: tuple[int, int], model: nn.Module, caches: Caches
) -> None:
    """Layer 1 has one budget in both texts, and goes on as one cache beside layers whose rows differ."""
    ways, seen, texts, longest = ([6, 12, 9], [9, 12, 6]), [], tokens(40), max(lengths)
    watch_attention(model)
    singles = []
    for number, (way, length) in enumerate(zip(ways, lengths, strict=True)):
        asked: list[list[float]] = []
        held, text = caches(asked, lambda similar, way=way: way), texts[number : number + 1]
        parts = [text[:, :length], *(text[:, at : at + 1] for at in range(longest, 38)), text[:, 38:]]
        singles.append((held, mx.concatenate([model(part, cache=held) for part in parts][1:], axis=1)))
        seen.append(*asked)

    def as_alone(similar: list[float]) -> list[int]:
        (same,) = [number for number, one in enumerate(seen) if np.allclose(one, similar, rtol=1e-5)]
        return ways[same]

    asked = []
    lists = [caches(asked, as_alone) for _ in ways]
    batch = [layer[0].merge([*layer]) for layer in zip(*lists, strict=True)]
    for cache in batch:
        cache.prepare(lengths=lengths, right_padding=[longest - length for length in lengths])
    model(texts[:, :longest], cache=batch)
    for cache in batch:
        cache.finalize()
    parts = [*(texts[:, at : at + 1] for at in range(longest, 38)), texts[:, 38:]]
    together = mx.concatenate([model(part, cache=batch) for part in parts], axis=1)
    for number, (held, logits) in enumerate(singles):
        assert mx.allclose(together[number], logits[0], rtol=0, atol=1e-4).item()
        rows = [cache.tokens_kept for cache in held]
        assert [cache.tokens_kept[number] for cache in batch] == rows == ways[number]
    assert len(asked) == 2


def test_a_layer_that_was_not_seen_is_missed(tiny_llama: Callable[..., nn.Module], caches: Caches) -> None:
    held = caches([])
    keys = mx.zeros((1, 2, 12, 8))
    for cache in held:
        cache.update_and_fetch(keys, keys)
    with pytest.raises(ValueError, match="layer 0: how much its attention changes was not seen"):
        held[0].update_and_fetch(keys, keys)


def test_a_share_without_the_others_is_refused() -> None:
    share = Share(6, lambda similar: BUDGETS, lambda index, rows: Method(NEWEST, rows))
    with pytest.raises(ValueError, match="layers that share their rows decide together"):
        EvictingCache(Method(NEWEST, 9, share=share), Options(queries="model"))


def test_a_model_that_scales_what_attention_adds_is_refused(tiny_llama: Callable[..., nn.Module]) -> None:
    from mlx_lm.models import gemma2

    args = {
        "model_type": "gemma2",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "vocab_size": 40,
        "num_key_value_heads": 1,
    }
    model = gemma2.Model(gemma2.ModelArgs.from_dict(args))
    before = gemma2.TransformerBlock.__call__
    blocks = {n: (layer, attention_of(model, n)) for n, layer in enumerate(model.layers)}
    with pytest.raises(ValueError, match="layer 0 does not just add its attention's output to the"):
        watch_residuals(model, [KVCache() for _ in model.layers], blocks)
    assert gemma2.TransformerBlock.__call__ is before
