"""KVzip in a small model: against loops in float64, without a trace, and refused without its second pass."""

from types import ModuleType
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache, RotatingKVCache
from vqx import LayerInfo
from vqx.testing import same_bits
from vqx_kvzip import KVzipConfig, compress
from vqx_kvzip.method import build
from vqx_kvzip.repetition import FIRST, LATER

CONTEXT = mx.random.randint(0, 97, (2, 40), key=mx.random.key(1))
LAYERS = 2


class Letters:
    """A tokenizer of one token a letter, without a chat template."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) % 97 for letter in text]


class Chatting(Letters):
    chat_template = "{{ messages }}"

    def apply_chat_template(self, messages: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert (tokenize, add_generation_prompt) == (False, True)
        return f"<user>{messages[0]['content']}</user><model>"


def requests(chunk: int, prefix: int, suffix: str) -> list[tuple[int, int, mx.array]]:
    """What is asked of the model for each part of the context, worked out apart."""
    asked = []
    for start in range(prefix, 40, chunk):
        end = min(start + chunk, 40)
        words = [ord(letter) % 97 for letter in (FIRST if start == prefix else LATER)]
        after = [ord(letter) % 97 for letter in suffix]
        rows = [
            [*words, *row[max(start - 8, prefix) : start], *after, *row[start:end]]
            for row in CONTEXT.tolist()
        ]
        asked.append((start, end, mx.array(rows)))
    return asked


def scores_by_hand(
    model: Any, oracle: ModuleType, chunk: int, prefix: int, suffix: str, n_sink: int
) -> list[list[list[list[float]]]]:
    """For each layer, sequence and head the score of every row of the context."""
    scores = [[[[1e30] * 40 for _ in range(2)] for _ in range(2)] for _ in range(LAYERS)]
    attend = llama.scaled_dot_product_attention
    for start, end, prompt in requests(chunk, prefix, suffix):
        caches, seen = [KVCache() for _ in range(LAYERS)], []

        def noting(queries: Any, keys: Any, *rest: Any, **more: Any) -> Any:
            seen.append((np.array(queries, np.float64), np.array(keys, np.float64)))  # noqa: B023
            return attend(queries, keys, *rest, **more)

        model(CONTEXT, cache=caches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llama, "scaled_dot_product_attention", noting)
            model(prompt, cache=caches)
        for layer, (queries, keys) in enumerate(seen):
            for b, h in np.ndindex(2, 2):
                scores[layer][b][h][start:end] = oracle.greatest(
                    queries[b, 2 * h : 2 * h + 2], keys[b, h], start=start, end=end, n_sink=n_sink
                )
    return scores


@pytest.mark.parametrize(
    ("tokenizer", "suffix", "chunk", "prefix", "n_sink"),
    [(Letters(), "\n", 2048, 0, 4), (Chatting(), "</user><model>", 15, 6, 1)],
    ids=["at once", "in parts"],
)
def test_kept_rows_are_the_oracles(
    model: Any, oracle: ModuleType, tokenizer: Any, suffix: str, chunk: int, prefix: int, n_sink: int
) -> None:
    caches = vqx.make_cache(model, "kvzip", budget=16, n_sink=n_sink)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vqx.state.attention.TILE", 5000)
        compress(model, tokenizer, caches, CONTEXT, prefix=prefix, chunk=chunk)
    scores, compared = scores_by_hand(model, oracle, chunk, prefix, suffix, n_sink), 0
    for layer, b, h in np.ndindex(LAYERS, 2, 2):
        right, gap = oracle.kept(scores[layer][b][h], 16, n_sink)
        if gap > 1e-6:
            compared += 1
            assert sorted(caches[layer].position[b, h].tolist()) == right
            assert set(range(prefix)) <= set(right)
    assert compared > 5


def test_the_repetition_leaves_no_trace(model: Any) -> None:
    caches, plain = vqx.make_cache(model, "kvzip", budget=99), [KVCache() for _ in range(LAYERS)]
    compress(model, Letters(), caches, CONTEXT)
    model(CONTEXT, cache=plain)
    assert [cache.tokens_seen for cache in caches] == [cache.offset for cache in caches] == [40] * LAYERS
    for one, other in zip(caches, plain, strict=True):
        assert same_bits(one.keys_and_values()[0], other.keys[..., :40, :])
        assert same_bits(one.keys_and_values()[1], other.values[..., :40, :])
    following = mx.array([[3, 5, 7], [2, 4, 6]])
    assert same_bits(model(following, cache=caches), model(following, cache=plain))


def test_cut_rows_are_the_contexts_own_and_take_no_more_room(model: Any) -> None:
    caches, plain = vqx.make_cache(model, "kvzip", budget=16), [KVCache() for _ in range(LAYERS)]
    compress(model, Letters(), caches, CONTEXT)
    model(CONTEXT, cache=plain)
    for one, other in zip(caches, plain, strict=True):
        where = one.position[..., None]
        assert same_bits(one.keys_and_values()[0], mx.take_along_axis(other.keys, where, axis=2))
        assert one.size() == one.tokens_kept == 16
        assert one.layer is not None
        assert one.layer.rows.keys.shape[2] <= 18


def test_what_follows_the_context_outranks_it(model: Any) -> None:
    caches = vqx.make_cache(model, "kvzip", budget=16)
    compress(model, Letters(), caches, CONTEXT)
    for token in range(14):
        mx.eval(model(mx.array([[token], [token]]), cache=caches))
    assert [cache.tokens_kept for cache in caches] == [16] * LAYERS
    for lane in caches[0].position.reshape(-1, 17).tolist():
        # four sinks and, of the new rows, which are equal, the newest
        assert {*lane} == {0, 1, 2, 3, *range(41, 54)}


def test_a_context_read_in_one_forward_is_taken_as_it_is(model: Any) -> None:
    one, other = (vqx.make_cache(model, "kvzip", budget=16) for _ in range(2))
    model(CONTEXT, cache=one)
    for caches in (one, other):
        compress(model, Letters(), caches, CONTEXT)
    assert all(mx.array_equal(*(c.position for c in pair)).item() for pair in zip(one, other, strict=True))


def test_without_the_second_pass_it_is_refused_at_its_first_cut(model: Any) -> None:
    caches = vqx.make_cache(model, "kvzip", budget=16)
    model(CONTEXT, cache=caches)
    with pytest.raises(ValueError, match=r"before the model repeated its context: .*vqx_kvzip.compress"):
        model(CONTEXT[:, :1], cache=caches)


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ({}, {"prefix": 40}, "prefix=40 leaves nothing to repeat of a context of 40 tokens"),
        ({}, {"chunk": 0}, "chunk=0: give an integer of at least 1"),
        ({}, {"prefix": -1}, "prefix=-1: give an integer of at least 0"),
        ({"cadence": "token"}, {}, "it takes no cadence='token'"),
    ],
)
def test_what_cannot_be_repeated_is_refused(
    model: Any, options: dict[str, Any], given: dict[str, int], words: str
) -> None:
    caches = vqx.make_cache(model, "kvzip", budget=16, **options)
    with pytest.raises(ValueError, match=words):
        compress(model, Letters(), caches, CONTEXT, **given)


def test_other_caches_are_refused(model: Any) -> None:
    caches = vqx.make_cache(model, "kvzip", budget=16)
    model(CONTEXT[:, :9], cache=caches)
    with pytest.raises(ValueError, match="the cache holds 9 rows of 9 tokens, and the context has 40"):
        compress(model, Letters(), caches, CONTEXT)
    with pytest.raises(ValueError, match="RotatingKVCache: kvzip reads the context twice"):
        compress(model, Letters(), [RotatingKVCache(max_size=8)], CONTEXT)
    layer = LayerInfo(0, "model")
    (method,) = build(KVzipConfig(budget=16), [layer])
    other = vqx.EvictingCache(method._replace(scorer=vqx.accumulated()), vqx.Options(queries="model"))
    with pytest.raises(ValueError, match="the rows of these caches are not ranked by kvzip alone"):
        compress(model, Letters(), [other], CONTEXT)


def test_keys_in_the_place_of_queries_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="layer 0: kvzip reads the model's own queries, and queries='keys'"):
        vqx.make_cache(model, "kvzip", budget=16, queries="keys")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        KVzipConfig(**{"budget": 16, **given})
    assert words in str(refused.value)
