"""The report says losses beside wins, and how sure it is of them."""

import math
from typing import Any

import pytest
from vqx_eval.report import report
from vqx_eval.summary import Spread, spread, student, tables, verdict
from vqx_eval.task import Figure, Task

LOSS = Figure("loss", "lower", "nats")
MATCH = Figure("match", "higher", "answers", percent=True)


def _task(name: str, figure: Figure) -> Task:
    return Task(
        name, "fidelity", "What it is.", list, lambda *given: [], (figure,), ("plain",), lambda s: [s]
    )


TASKS = {"one": _task("one", LOSS), "two": _task("two", MATCH)}


def _piece(task: str, label: str, budget: int | None, values: list[float], **rest: Any) -> dict[str, Any]:
    name = TASKS[task].figures[0].name
    samples = [{"number": number, name: value} for number, value in enumerate(values)]
    return {
        "task": task,
        "protocol": "plain",
        "length": 1024,
        "label": label,
        "budget": budget,
        "samples": samples,
        **rest,
    }


def _report(*pieces: dict[str, Any]) -> str:
    return report(tables(pieces, TASKS), {"model": "a model", "date": "today"})


STREAMING = _piece("one", "streaming-llm", 256, [0.3, 0.5, 0.4])


def test_a_loss_to_streaming_is_said() -> None:
    text = _report(STREAMING, _piece("one", "bad", 256, [0.5, 0.71, 0.6]))
    assert "`bad` at 256: **loses to streaming-llm** on one at 1,024 tokens (+0.203 ± 0.003 loss)" in text
    assert "| 256 | bad |  | 0.603 ± 0.061 | +0.203 ± 0.003 **loses** |" in text


def test_a_loss_comes_before_a_win() -> None:
    text = _report(
        STREAMING,
        _piece("one", "mixed", 256, [0.5, 0.71, 0.6]),
        _piece("two", "streaming-llm", 256, [0.0, 0.1, 0.0]),
        _piece("two", "mixed", 256, [1.0, 1.0, 1.0]),
    )
    (line,) = (line for line in text.splitlines() if line.startswith("- `mixed`"))
    assert line.index("loses") < line.index("wins on two")


def test_a_difference_within_its_error_is_no_win() -> None:
    text = _report(STREAMING, _piece("one", "noisy", 256, [0.1, 0.6, 0.4]))
    assert "`noisy` at 256: no clear difference on 1 of 1" in text
    assert "wins" not in text


def test_differences_are_paired_by_sample() -> None:
    other = _piece("one", "steady", 256, [0.29, 0.49, 0.39])
    (table,) = tables([STREAMING, other], TASKS)
    difference = table.cells[1].over_streaming["loss"]
    assert difference.mean == pytest.approx(-0.01)
    assert difference.error < 1e-9
    assert table.cells[1].figures["loss"].error > 0.05


def test_streaming_of_another_budget_is_no_measure() -> None:
    assert "Nothing was compared." in _report(STREAMING, _piece("one", "bad", 512, [0.5, 0.7, 0.6]))


def test_a_cache_that_evicted_nothing_neither_wins_nor_loses() -> None:
    text = _report(STREAMING, _piece("one", "idle", 256, [0.0, 0.0, 0.1], evicted=0))
    assert "idle (nothing was evicted)" in text
    assert "Nothing was compared." in text


def test_what_could_not_be_run_says_why() -> None:
    skipped = {**_piece("one", "wide", 256, []), "skipped": "budget=256 leaves no room"}
    assert "| 256 | wide | not run: budget=256 leaves no room |" in _report(STREAMING, skipped)


def test_one_sample_has_no_error() -> None:
    assert math.isnan(spread([0.5]).error)
    assert "| 256 | alone |  | 0.500 | +0.200 |" in _report(STREAMING, _piece("one", "alone", 256, [0.5]))


@pytest.mark.parametrize(("mean", "said"), [(0.1, "worse"), (-0.1, "better"), (0.01, "even")])
def test_lower_is_better_for_a_loss_and_not_for_a_match(mean: float, said: str) -> None:
    opposite = {"worse": "better", "better": "worse", "even": "even"}[said]
    assert verdict(LOSS, Spread(mean, 0.02, 5)) == said
    assert verdict(MATCH, Spread(mean, 0.02, 5)) == opposite


@pytest.mark.parametrize(("freedom", "exact"), [(4, 2.776), (10, 2.228), (30, 2.042), (1000, 1.962)])
def test_few_samples_must_differ_by_more(freedom: int, exact: float) -> None:
    assert student(freedom) == pytest.approx(exact, rel=0.02)


def test_two_samples_are_too_few_to_tell() -> None:
    assert verdict(LOSS, Spread(1.0, 0.0, 2)) == "even"
