"""mlx-lm's batches with evicting caches: sequences that join and leave go on as each goes on alone."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator
from subjects import REPRESENTATIVES, caches_of
from tiny_models.build import tiny_model
from vqx import Options
from vqx.host.trial import unbatched
from vqx.testing import remaining

ENGINES = {
    "defaults": Options(),
    "every 5": Options(interval=5),
    "token": Options(cadence="token"),
    "keys token": Options(queries="keys", cadence="token"),
    "centred keys": Options(queries="centred-keys"),
    "whole": Options(prompt="whole", interval=3),
    "bits": Options(bits=8, group_size=32),
    "compact": Options(positions="compact"),
    "compact every 5": Options(positions="compact", interval=5),
    "compact token": Options(positions="compact", cadence="token"),
}
STEP, BUDGET = 16, 24
WORDS = 4001
LENGTHS = (44, 47, 1, 2, 9, 17, 50)
"""Of prompts: some in one chunk, some in several, some above the budget."""


EVERY = [method for method in REPRESENTATIVES.values() if method != "kvzip"]  # which reads its context twice
PAIRS = [
    *((method, "defaults") for method in EVERY),
    *(("h2o", engine) for engine in ENGINES if engine != "defaults"),
    ("morphkv", "token"),
    ("morphkv", "bits"),
    ("morphkv", "compact"),
    ("ada", "whole"),
    ("ada", "every 5"),
    ("ada", "bits"),
    ("squeezeattention", "whole"),
    ("squeezeattention", "every 5"),
]
"""One method of each nature; that each method treats sequences apart is a law of the kit."""


class Finished(NamedTuple):
    tokens: list[int]  # generated
    fed: list[int]  # prompt and generated tokens that the caches have read
    caches: list[Any]


@pytest.fixture(scope="module")
def model(make_llama: Callable[..., Any]) -> Any:
    return make_llama(vocab_size=WORDS, hidden_size=128)


def no_word_twice(tokens: mx.array, logits: mx.array) -> mx.array:
    """A logits processor: rows of equal words would tie but for rounding."""
    logits[:, tokens] = -mx.inf
    return logits


def alone(model: Any, caches: list[Any], prompt: list[int], fed: list[int]) -> list[int]:
    """Greedy tokens after each of ``fed`` from the prompt's last on, read as mlx-lm reads one sequence."""
    read = prompt[:-1]
    for first in range(0, len(read), STEP):
        model(mx.array([read[first : first + STEP]]), cache=caches)
        mx.eval([cache.state for cache in caches])
    chosen = []
    for number in range(len(read), len(fed)):
        logits = model(mx.array([fed[number : number + 1]]), cache=caches)[:, -1]
        chosen.append(mx.argmax(no_word_twice(mx.array(fed[: number + 1]), logits)))
    return [int(token) for token in mx.stack(chosen).tolist()]


def in_batches(
    model: Any, fresh: Callable[[], list[Any]], prompts: list[list[int]], lengths: list[int], seed: int
) -> list[Finished]:
    """All prompts through one generator, which they join at random times; with seed 0 at once."""
    when, waiting = random.Random(seed), [*range(len(prompts))]
    generator = BatchGenerator(model, prefill_step_size=STEP, completion_batch_size=8, prefill_batch_size=3)
    of: dict[int, int] = {}
    tokens: list[list[int]] = [[] for _ in prompts]
    ended: dict[int, Finished] = {}
    while len(ended) < len(prompts):
        if waiting and (len(of) == len(ended) or when.random() < 0.3):
            count = when.randrange(1, 4) if seed else len(prompts)
            coming, waiting = waiting[:count], waiting[count:]
            uids = generator.insert(
                [prompts[number] for number in coming],
                [lengths[number] for number in coming],
                caches=[fresh() for _ in coming],
                logits_processors=[[no_word_twice]] * len(coming),
            )
            of.update(zip(uids, coming, strict=True))
        for response in generator.next_generated():
            number = of[response.uid]
            tokens[number].append(response.token)
            if response.finish_reason:
                caches = response.prompt_cache
                ended[number] = Finished(tokens[number], [*response.all_tokens], caches)
    generator.close()
    return [ended[number] for number in range(len(prompts))]


@pytest.mark.parametrize(("method", "engine"), PAIRS)
def test_sequences_that_join_and_leave_generate_and_keep_what_they_do_alone(
    method: str, engine: str, model: Any
) -> None:
    draw = random.Random(len(method))
    prompts = [draw.sample(range(WORDS), length) for length in LENGTHS]
    lengths = [draw.randrange(8, 36) for _ in prompts]

    def fresh() -> list[Any]:
        return caches_of(model, method, ENGINES[engine], budget=BUDGET)

    seed = 0 if engine == "whole" else 1

    evicted = 0
    for prompt, ended in zip(prompts, in_batches(model, fresh, prompts, lengths, seed), strict=True):
        single = fresh()
        assert alone(model, single, prompt, ended.fed)[: len(ended.tokens)] == ended.tokens
        for out, own in zip(ended.caches, single, strict=True):
            assert (type(out), out.tokens_seen, out.tokens_kept) == (
                vqx.EvictingCache,
                own.tokens_seen,
                own.tokens_kept,
            )
            assert np.array_equal(remaining(out).position, remaining(own).position)
            evicted += own.tokens_seen - own.tokens_kept
    assert evicted


@pytest.mark.parametrize("method", ["h2o", "l2norm:skip=1", "ada(h2o)"])
def test_sequences_padded_before_are_read_as_if_alone(method: str, model: Any) -> None:
    name, _, skip = method.partition(":skip=")
    options = {"budget": BUDGET, **({"skip": int(skip)} if skip else {})}

    def fresh() -> list[Any]:
        return vqx.make_cache(model, name, **options)

    draw = random.Random(5)
    texts = [draw.sample(range(WORDS), length) for length in (40, 9, 26)]
    longest = max(map(len, texts))
    caches = [layer[0].merge([*layer]) for layer in zip(*(fresh() for _ in texts), strict=True)]
    for cache in caches:
        cache.prepare(left_padding=[longest - len(text) for text in texts])
    padded = mx.array([[0] * (longest - len(text)) + text for text in texts])
    together = [model(padded[:, :17], cache=caches), model(padded[:, 17:], cache=caches)]
    more = mx.array([draw.sample(range(WORDS), 12) for _ in texts])
    together += [model(more[:, i : i + 1], cache=caches) for i in range(12)]
    logits = mx.concatenate(together, axis=1)
    for place, text in enumerate(texts):
        single, skipped = fresh(), longest - len(text)
        cut = max(17 - skipped, 0)
        read = [model(mx.array([part]), cache=single) for part in (text[:cut], text[cut:]) if part]
        read += [model(more[place : place + 1, i : i + 1], cache=single) for i in range(12)]
        own = mx.concatenate(read, axis=1)
        assert mx.allclose(logits[place : place + 1, skipped:], own, rtol=0, atol=1e-4).item()
        for out, alone_ in zip(caches, single, strict=True):
            assert np.array_equal(remaining(out.extract(place)).position, remaining(alone_).position)
    assert caches[-1].tokens_kept == (BUDGET, 21, BUDGET)


def test_layers_that_all_keep_everything_are_read_in_one_batch(model: Any) -> None:
    def fresh() -> list[Any]:
        return vqx.make_cache(model, "l2norm", budget=BUDGET, skip=99)

    prompts, lengths = [[3, 1, 4, 1, 5], [*range(40)]], [20, 8]
    for prompt, ended in zip(prompts, in_batches(model, fresh, prompts, lengths, 0), strict=True):
        assert alone(model, fresh(), prompt, ended.fed)[: len(ended.tokens)] == ended.tokens
        assert all(cache.tokens_kept == cache.tokens_seen > len(prompt) for cache in ended.caches)


def test_mlx_lm_weighs_a_batch(model: Any) -> None:
    generator = BatchGenerator(model, max_tokens=8, prefill_step_size=STEP)
    generator.insert([[1, 2, 3], [*range(40)]], caches=[vqx.make_cache(model, "h2o", budget=24)] * 2)
    while not generator.next_generated():
        pass
    both = [generator._prompt_batch, generator._generation_batch]
    held = [a.nbytes for batch in both for cache in batch.prompt_cache for a in cache.state]
    assert generator.prompt_cache_nbytes == sum(held) > 0
    generator.close()


def test_caches_made_in_different_ways_are_not_read_in_one_batch(model: Any) -> None:
    one, other = vqx.make_cache(model, "h2o", budget=24), vqx.make_cache(model, "h2o", budget=25)
    with pytest.raises(ValueError, match="make them alike"):
        one[0].merge([one[0], other[0]])
    same = vqx.make_cache(model, "h2o", budget=24)
    assert len(one[0].merge([one[0], same[0]])) == 2


def test_a_method_that_takes_the_newest_position_for_one_number_has_no_batches(model: Any) -> None:
    score = vqx.Scorer(score=lambda held: held.position * (2 if held.newest > 3 else 1))

    def fresh() -> list[Any]:
        return [vqx.EvictingCache(vqx.Method(score, BUDGET), Options(queries="model")) for _ in model.layers]

    assert "array" in unbatched(model, fresh)


ROWS = "do not fit sequences, or layers, of different numbers of rows"


@pytest.mark.parametrize(
    ("name", "method", "why"),
    [
        *((name, "tova", ROWS) for name in ("gemma2", "gpt_bigcode", "phi3small", "afm7")),
        ("mistral4", "squeezeattention", ROWS),
        ("llama4", "tova", "llama4 has layers of another kind"),
    ],
)
def test_a_model_that_reads_no_batches_has_caches_without_merge(name: str, method: str, why: str) -> None:
    caches = vqx.make_cache(tiny_model(name), method, budget=BUDGET)
    evicting = [cache for cache in caches if isinstance(cache, vqx.EvictingCache)]
    assert not any(hasattr(cache, "merge") for cache in evicting)
    with pytest.raises(AttributeError, match=f"layer .: no batches, since .*{why}"):
        _ = evicting[0].merge
