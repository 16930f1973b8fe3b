"""A real model with most of a text's rows gone: coherent writing, nearly the same loss, bounded memory."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx_lm.sample_utils import make_sampler
from subjects import METHODS, NATURES, REPRESENTATIVES, caches_of, check_full, default_caches, representative

BUDGET = 256

FROZEN = {"method": "h2o", "recent": 0, "queries": "keys", "cadence": "token"}
"""The adapted plain form: a new row has no mass and goes at once, so the first 256 rows stay for good."""


class Written(NamedTuple):
    """What was written after a prompt, and how coherent it is."""

    tokens: list[int]
    loss: float
    """Nats per token under the full cache."""
    repeated: float
    """The share of its trigrams that it had written before."""
    caches: list[Any]

    @property
    def coherent(self) -> bool:
        """By bounds between what the full cache writes (2.5 nats, none repeated) and a frozen one (0.9)."""
        return self.loss < 3.5 and self.repeated < 0.4


TOGETHER, PROMPT, ANSWER = 1372, 1500, 28


def read_once(reader: Any, tokens: mx.array, caches: Mapping[str, list[Any]]) -> None:
    """One forward for all; layers that share their rows look at the forward, so it has to be their own."""
    alone = [name for name in caches if name in NATURES and NATURES[name].shares_layers]
    reader.read_together(tokens, [each for name, each in caches.items() if name not in alone])
    for name in alone:
        mx.eval(reader.model.model(tokens, cache=caches[name]), [cache.state for cache in caches[name]])


@pytest.fixture(scope="module")
def written(embedded: Any, texts: Mapping[str, list[int]]) -> dict[str, Written]:
    """28 tokens after 1,500 of a story, at a temperature of 0.7: so small a model's greedy text loops anyway.

    The first 1,372 are one chunk, cut to 256 rows; the others are read by each method for itself.
    """
    story, model = texts["narrative"][:PROMPT], embedded.model
    with pytest.warns(UserWarning, match="recent=0"):
        caches = {"full": embedded.plain(), "frozen": vqx.make_cache(model, budget=BUDGET, **FROZEN)}
    caches |= {name: default_caches(model, name, BUDGET) for name in REPRESENTATIVES.values()}
    read_once(embedded, mx.array([story[:TOGETHER]]), caches)
    full = copy.deepcopy(caches["full"])
    mx.eval(model.model(mx.array([story[TOGETHER:-1]]), cache=full))

    def write(own: list[Any]) -> Written:
        mx.random.seed(3)
        responses = mlx_lm.stream_generate(
            model,
            embedded.tokenizer,
            story[TOGETHER:],
            max_tokens=ANSWER,
            prompt_cache=own,
            sampler=make_sampler(0.7),
        )
        tokens = [response.token for response in responses]
        logits = embedded.read(copy.deepcopy(full), mx.array([[story[-1], *tokens[:-1]]]), [len(tokens)])
        loss = nn.losses.cross_entropy(logits[0], mx.array(tokens)).mean().item()
        trigrams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
        return Written(tokens, loss, 1 - len(set(trigrams)) / len(trigrams), own)

    return {name: write(own) for name, own in caches.items()}


@representative
def test_the_story_goes_on_coherently_with_a_sixth_of_its_rows(
    method: str, written: dict[str, Written]
) -> None:
    text = written[method]
    assert len(text.tokens) == ANSWER
    check_full(text.caches, BUDGET)
    assert all(cache.tokens_seen >= PROMPT + ANSWER - 1 for cache in text.caches)
    assert text.coherent, (text.loss, text.repeated)


def test_the_measure_of_coherence_tells_the_full_cache_from_a_frozen_one(written: dict[str, Written]) -> None:
    assert written["full"].coherent
    assert not written["frozen"].coherent


class Losses(NamedTuple):
    """Nats per token of what follows a prompt, text by text."""

    each: Sequence[float]

    @property
    def mean(self) -> float:
        return sum(self.each) / len(self.each)


READ, FOLLOWING = 512, 96


@pytest.fixture(scope="module")
def losses(embedded: Any, texts: Mapping[str, list[int]]) -> dict[str, Losses]:
    """96 tokens after 512 of each text, teacher forced, with the methods' default settings.

    The texts are one batch. What follows is read 32 tokens at a time, so rows go again and again.
    """
    tokens = mx.array([text[: READ + FOLLOWING + 1] for text in texts.values()])
    caches = {"full": embedded.plain()}
    caches |= {name: default_caches(embedded.model, name, BUDGET) for name in METHODS}
    read_once(embedded, tokens[:, :READ], caches)
    found = {}
    for name, own in caches.items():
        logits = embedded.read(own, tokens[:, READ:-1], [32] * (FOLLOWING // 32))
        each = nn.losses.cross_entropy(logits, tokens[:, READ + 1 :]).mean(axis=1)
        found[name] = Losses(each.tolist())
        if name != "full":
            check_full(own, BUDGET)
    return found


def test_what_follows_is_about_as_likely_as_with_streaming_llm(
    losses: dict[str, Losses], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nnats per token after {READ} tokens, budget {BUDGET}:")
        for name, row in losses.items():
            print(f"{name:>16}", *(f"{one:.3f}" for one in row.each), f"mean {row.mean:.3f}")
    bound = losses["streaming-llm"].mean + 0.3
    assert {name: losses[name].mean for name in METHODS if losses[name].mean > bound} == {}


def test_evicting_more_than_half_of_the_rows_costs_less_than_half_a_nat(losses: dict[str, Losses]) -> None:
    bound = losses["full"].mean + 0.5
    assert {name: losses[name].mean for name in METHODS if losses[name].mean > bound} == {}


@representative
def test_a_prompt_of_3200_tokens_ends_in_the_memory_of_its_budget(
    method: str, shallow: Any, texts: Mapping[str, list[int]]
) -> None:
    """Two layers of the embedded model; mlx-lm reads in chunks of 2,048, whose rows must be given back."""
    prompt = (texts["narrative"] + texts["manual"])[:3200]
    mx.clear_cache()
    before = mx.get_active_memory()
    caches = caches_of(shallow.model, method, budget=BUDGET)
    mlx_lm.generate(shallow.model, shallow.tokenizer, prompt, max_tokens=4, prompt_cache=caches)
    held, kept = (sum(getattr(cache, name) for cache in caches) for name in ("nbytes", "kept_bytes"))
    check_full(caches, BUDGET)
    assert all(cache.tokens_seen >= 3200 for cache in caches)
    # what is known of all queries is a third more, at these sizes, and does not grow
    assert held < 1.5 * kept
    # beside the caches a token's logits, 200 kB, may still be held
    assert mx.get_active_memory() - before < 1.5 * held + 2**19
