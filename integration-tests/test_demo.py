"""The demonstration does what it says, on a prompt cut short."""

import dataclasses

import pytest
import vqx  # noqa: F401
from vqx.host.demo import Demo, shown_methods


@pytest.fixture(scope="module")
def short() -> Demo:
    demo = Demo.load()
    assert 1300 <= len(demo.prompt) <= 1700, "the whole prompt has some 1,500 tokens"
    return dataclasses.replace(demo, prompt=demo.prompt[:60] + demo.prompt[-40:])


def test_every_cache_is_measured_beside_the_full_one(short: Demo) -> None:
    moved: list[int] = []
    names = ["streaming-llm", "tova"]
    outcomes = short.run(names, budget=40, tokens=5, advance=lambda label, n: moved.append(n))
    assert [outcome.name for outcome in outcomes] == ["full cache", *names]
    full, *evicting = outcomes
    assert full.loss_over_full == 0
    assert full.rows > 100
    for outcome in evicting:
        assert outcome.rows == 40
        assert outcome.kept_bytes * full.rows == full.kept_bytes * 40
        assert outcome.loss_over_full != 0
        assert outcome.answer_tokens_per_second > 0
    assert sum(moved) <= short.steps(5) * 3


def test_with_room_for_everything_nothing_is_lost(short: Demo) -> None:
    full, kept = short.run(["h2o"], budget=4096, tokens=3, advance=lambda label, n: None)
    assert kept.loss_over_full == 0
    assert kept.answer == full.answer


def test_a_budget_without_room_is_refused_before_anything_is_read(short: Demo) -> None:
    moved: list[int] = []
    with pytest.raises(ValueError, match="budget=4 leaves no room"):
        short.run(["h2o"], budget=4, tokens=3, advance=lambda label, n: moved.append(n))
    assert not moved


def test_of_many_methods_those_are_shown_that_are_taken_where_none_is_named() -> None:
    assert shown_methods() == ["h2o", "fusion", "tova", "streaming-llm"]
