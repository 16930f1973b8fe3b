"""Samples are the same every time, of exact lengths, in two halves that share nothing."""

from collections.abc import Callable

import pytest
from vqx_eval.haystack import split_answer
from vqx_eval.samples import Sample, batches, from_json, to_json
from vqx_eval.task import Task, Wanted
from vqx_eval.tasks import load_tasks

READ = {name: task for name, task in load_tasks().items() if task.group != "model-free"}
RETRIEVAL = {name: task for name, task in READ.items() if task.group == "retrieval"}

each = pytest.mark.parametrize("task", READ.values(), ids=READ)
retrieval = pytest.mark.parametrize("task", RETRIEVAL.values(), ids=RETRIEVAL)


@pytest.fixture
def roomy(wanted: Wanted) -> Wanted:
    """Room for the longest facts, which take hundreds of characters."""
    return wanted._replace(length=700, samples=20)


@each
def test_samples_are_the_same_every_time_and_as_json(task: Task, roomy: Wanted) -> None:
    made = _plain(task, roomy)
    assert made == _plain(task, roomy)
    assert made


@each
def test_both_halves_are_there_and_share_no_sample(task: Task, roomy: Wanted) -> None:
    samples = task.make(roomy)
    halves = [
        {(*s.context, *s.question, *s.answer) for s in samples if s.half == half}
        for half in ("tune", "report")
    ]
    assert all(halves)
    assert not halves[0] & halves[1]


def test_a_text_is_in_one_half_only(roomy: Wanted) -> None:
    where = {(s.marks["text"], s.half) for s in READ["continuation"].make(roomy)}
    assert sorted(half for _, half in where) == ["report", "tune"]


@retrieval
def test_a_context_has_exactly_the_length_asked_for(task: Task, roomy: Wanted) -> None:
    for length in (650, 701):
        assert {len(s.context) for s in task.make(roomy._replace(length=length))} == {length}


@retrieval
def test_the_first_fact_stands_at_its_depth(
    task: Task, roomy: Wanted, text_of: Callable[[list[int]], str]
) -> None:
    for sample in task.make(roomy):
        if not sample.marks["places"]:
            continue
        first, last = sample.marks["places"][0]
        if task.name not in ("variables", "passkey-long"):
            centre = sample.marks["depth"] * (roomy.length - 80)  # less the head
            assert abs(first - centre) < 0.3 * roomy.length
        if len(sample.marks["places"]) == 1 and task.name != "variables":
            assert text_of(sample.answer) in text_of(sample.context[first:last])


def test_a_variable_is_set_before_it_is_passed_on(roomy: Wanted) -> None:
    for sample in READ["variables"].make(roomy):
        chain = [first for first, _ in sample.marks["places"][: sample.marks["hops"] + 1]]
        assert chain == sorted(chain)


def test_decoys_have_the_form_of_the_needle_and_another_answer(
    roomy: Wanted, text_of: Callable[[list[int]], str]
) -> None:
    for sample in READ["hard-needle"].make(roomy):
        needle, *decoys = (text_of(sample.context[first:last]) for first, last in sample.marks["places"])
        assert text_of(sample.answer).strip() in needle
        assert not any(text_of(sample.answer).strip() in decoy for decoy in decoys)
        assert len(decoys) == 3


def test_batches_hold_samples_of_one_shape_and_all_of_them(roomy: Wanted) -> None:
    samples = READ["hard-needle"].make(roomy)
    parts = batches(samples, "aware", 4)
    assert all(len({sample.shape for sample in part.samples}) == 1 for part in parts)
    assert all(len(part.samples) <= 4 for part in parts)
    assert sorted(s.number for part in parts for s in part.samples) == list(range(20))


def test_a_space_of_its_own_belongs_to_the_question() -> None:
    words = {
        "The key is": [1, 2, 3],
        " ": [9],
        "The key is 12": [1, 2, 3, 9, 4, 5],
        "The key is gold": [1, 2, 3, 7],
    }
    assert split_answer(words.__getitem__, "The key is", "12") == ([1, 2, 3, 9], [4, 5])
    assert split_answer(words.__getitem__, "The key is", "gold") == ([1, 2, 3], [7])


def test_too_short_a_context_says_what_would_do(wanted: Wanted) -> None:
    with pytest.raises(ValueError, match="--prompt-tokens of at least"):
        READ["multi-key"].make(wanted._replace(length=100))


def test_too_short_a_text_says_what_would_do(wanted: Wanted) -> None:
    with pytest.raises(ValueError, match="--texts"):
        READ["continuation"].make(wanted._replace(length=100_000))


def _plain(task: Task, wanted: Wanted) -> list[Sample]:
    return from_json(to_json(task.make(wanted)))
