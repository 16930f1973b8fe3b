"""A real model with five sixths of a text's rows gone goes on writing coherently."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx_lm.sample_utils import make_sampler
from subjects import REPRESENTATIVES, check_full, default_caches, read_once, representative

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


TOGETHER, PROMPT, ANSWER = 1468, 1500, 28


@pytest.fixture(scope="module")
def written(embedded: Any, texts: Mapping[str, list[int]]) -> dict[str, Written]:
    """28 tokens after 1,500 of a story, at a temperature of 0.7: so small a model's greedy text loops anyway.

    The first 1,468 are one chunk, cut to 256 rows; the others are read by each method for itself.
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
