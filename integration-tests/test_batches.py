"""mlx-lm's batches with evicting caches: sequences that join and leave go on as each goes on alone."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator
from subjects import NATURES, REPRESENTATIVES, caches_of
from vqx import Options
from vqx.testing import remaining

ENGINES = {
    "defaults": Options(),
    "every 5": Options(interval=5),
    "token": Options(cadence="token"),
    "keys token": Options(queries="keys", cadence="token"),
    "centred keys": Options(queries="centred-keys"),
    "whole": Options(prompt="whole", interval=3),
    "bits": Options(bits=8, group_size=32),
}
STEP, BUDGET = 16, 24
WORDS = 4001
LENGTHS = (1, 2, 9, 17, 50)
"""Of prompts: some in one chunk, some in several, some above the budget."""


EVERY = [method for method in REPRESENTATIVES.values() if method != "kvzip"]  # which reads its context twice
PAIRS = [
    *((method, engine) for method in EVERY for engine in ("defaults", "whole")),
    *(("h2o", engine) for engine in ENGINES if engine not in ("defaults", "whole")),
    ("morphkv", "token"),
    ("morphkv", "bits"),
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
    """All prompts through one generator, which they join at random times."""
    when, waiting = random.Random(seed), [*range(len(prompts))]
    generator = BatchGenerator(model, prefill_step_size=STEP, completion_batch_size=8, prefill_batch_size=3)
    of: dict[int, int] = {}
    tokens: list[list[int]] = [[] for _ in prompts]
    ended: dict[int, Finished] = {}
    while len(ended) < len(prompts):
        if waiting and (len(of) == len(ended) or when.random() < 0.3):
            number = waiting.pop(0)
            (uid,) = generator.insert(
                [prompts[number]],
                [lengths[number]],
                caches=[fresh()],
                logits_processors=[[no_word_twice]],
            )
            of[uid] = number
        for response in generator.next_generated():
            number = of[response.uid]
            tokens[number].append(response.token)
            if response.finish_reason:
                caches = response.prompt_cache
                ended[number] = Finished(tokens[number], [*response.all_tokens], caches)
    generator.close()
    return [ended[number] for number in range(len(prompts))]


def batched(method: str) -> bool:
    return not (NATURES[method].shares_heads or NATURES[method].shares_layers)


@pytest.mark.parametrize(("method", "engine"), PAIRS)
def test_sequences_that_join_and_leave_generate_and_keep_what_they_do_alone(
    method: str, engine: str, model: Any
) -> None:
    draw = random.Random(len(method))
    prompts = [draw.sample(range(WORDS), length) for length in LENGTHS]
    lengths = [draw.randrange(8, 36) for _ in prompts]

    def fresh() -> list[Any]:
        return caches_of(model, method, ENGINES[engine], budget=BUDGET)

    if not batched(method):
        with pytest.raises(AttributeError, match="no batches, since"):
            _ = fresh()[0].merge
        with pytest.raises(ValueError, match="batching"):
            in_batches(model, fresh, prompts, lengths, seed=1)
        return
    evicted = 0
    for prompt, ended in zip(prompts, in_batches(model, fresh, prompts, lengths, seed=1), strict=True):
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
