"""A run goes on where it stopped, and does again what was asked for differently."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from vqx_eval.command import command
from vqx_eval.store import open_store

SMALL = [
    "--texts", "text.txt", "--samples", "4", "--batch", "2", "--prompt-tokens", "200", "--answer-tokens", "8",
    "--budgets", "48", "--methods", "toy-newest", "--tasks", "continuation,passkey", "--out", "out",
]  # fmt: skip


def _run(*more: str) -> Result:
    result = CliRunner().invoke(command, [*SMALL, *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / "pieces.jsonl").read_text().splitlines()]


def test_a_run_again_measures_nothing_and_says_the_same(here: Path) -> None:
    _run()
    first, report = _lines(here), (here / "out" / "report.json").read_text()
    _run()
    assert _lines(here) == first
    assert (here / "out" / "report.json").read_text() == report


def test_every_batch_of_every_candidate_is_a_line(here: Path) -> None:
    _run()
    found = Counter((piece["task"], piece["protocol"], piece["label"]) for piece in _lines(here))
    labels = ("full cache", "RotatingKVCache", "streaming-llm", "toy-newest")
    kinds = (("continuation", "plain"), ("passkey", "aware"), ("passkey", "agnostic"))
    assert found == {(*kind, label): 2 for kind in kinds for label in labels}
    assert all(piece["evicted"] > 0 for piece in _lines(here) if "evicted" in piece)


@pytest.mark.parametrize(
    "change", [("--budgets", "32"), ("--chunk", "100"), ("--seed", "1"), ("--methods", "toy-newest:n_sink=1")]
)
def test_a_changed_setting_is_another_line(here: Path, change: tuple[str, str]) -> None:
    _run("--tasks", "passkey")
    before = {piece["key"] for piece in _lines(here)}
    _run("--tasks", "passkey", *change)
    assert {piece["key"] for piece in _lines(here)} > before


def test_a_torn_line_is_measured_again(here: Path) -> None:
    _run("--tasks", "passkey")
    file = here / "out" / "pieces.jsonl"
    whole = file.read_text()
    file.write_text(whole[:-30])
    _run("--tasks", "passkey")
    assert len(_lines(here)) == whole.count("\n")
    assert len(open_store(here / "out").pieces) == whole.count("\n")


def test_halves_are_run_apart(here: Path) -> None:
    _run("--half", "tune", "--samples", "12")
    tuned = {(p["task"], s["number"]) for p in _lines(here) for s in p["samples"]}
    _run("--half", "report", "--samples", "12", "--out", "other")
    reported = {
        (piece["task"], sample["number"])
        for line in (here / "other" / "pieces.jsonl").read_text().splitlines()
        for piece in [json.loads(line)]
        for sample in piece["samples"]
    }
    assert tuned
    assert reported
    assert not tuned & reported


def test_a_method_that_fails_is_in_the_table_and_stops_no_other(here: Path) -> None:
    _run("--methods", "toy-unable", "--tasks", "passkey")
    report = (here / "out" / "report.md").read_text()
    assert "| 48 | toy-unable | not run: toy-unable wants to read everything twice |" in report
    assert "| 48 | toy-newest |" in report
    assert "toy-unable" not in {piece["label"] for piece in _lines(here)}
