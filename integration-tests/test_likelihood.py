"""A real model with more than half of a text's rows gone finds what follows nearly as likely."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import vqx  # noqa: F401  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
import pytest
from subjects import METHODS, check_full, default_caches, read_once

BUDGET = 256


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
