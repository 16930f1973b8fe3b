"""The command says in words what it cannot do, and runs every task that it lists."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from vqx import Setting
from vqx.settings import settings
from vqx_eval.command import command
from vqx_eval.setup import numbers, tasks_named

QUICK = [
    "--texts", "text.txt", "--samples", "2", "--prompt-tokens", "650", "--answer-tokens", "8",
    "--budgets", "48",
    "--write-tokens", "80", "--stream-tokens", "300", "--methods", "toy-newest", "--json",
]  # fmt: skip


def test_methods_are_written_with_their_options() -> None:
    assert settings(["h2o:decay=0.98,recent=32,tova", "snapkv:prompt=whole protect(h2o):recent=none"]) == [
        Setting("h2o", {"decay": 0.98, "recent": 32}),
        Setting("tova", {}),
        Setting("snapkv", {"prompt": "whole"}),
        Setting("protect(h2o)", {"recent": None}),
    ]


def test_no_method_is_no_setting() -> None:
    assert settings([]) == []


@pytest.mark.parametrize("text", ["decay=1", "h2o:decay", "h2o,=3"])
def test_an_option_without_method_or_value_is_explained(text: str) -> None:
    with pytest.raises(ValueError, match=r"h2o:decay=0\.98,recent=32"):
        settings([text])


@pytest.mark.parametrize("text", ["", "many", "0", "3.5"])
def test_budgets_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--budgets"):
        numbers("budgets", text)


def test_tasks_are_named_by_themselves_and_by_group() -> None:
    assert next(task.name for task in tasks_named("passkey,model-free")) == "passkey"
    assert {task.group for task in tasks_named("model-free")} == {"model-free"}
    assert len(tasks_named("all")) > len(tasks_named("retrieval")) > 5
    with pytest.raises(ValueError, match="no task 'passkeys'"):
        tasks_named("passkeys")


@pytest.mark.parametrize("task", [task.name for task in tasks_named("all")])
def test_every_task_runs(here: Path, task: str) -> None:
    result = CliRunner().invoke(command, [*QUICK, "--tasks", task], catch_exceptions=False)
    pieces = json.loads(result.stdout)
    figures = {figure.name for figure in tasks_named(task)[0].figures}
    assert pieces
    assert all(figures <= set(sample) for piece in pieces for sample in piece["samples"])
    assert any(piece.get("evicted", 0) > 0 for piece in pieces)


def test_an_unknown_method_names_those_installed(here: Path) -> None:
    result = CliRunner().invoke(command, ["--methods", "toy-newset"])
    assert result.exit_code == 2
    assert "Did you mean 'toy-newest'" in result.output


def test_pictures_want_a_folder(here: Path) -> None:
    result = CliRunner().invoke(command, [*QUICK, "--plots"])
    assert result.exit_code == 2
    assert "--out" in result.output


def test_the_tasks_are_listed() -> None:
    listed = CliRunner().invoke(command, ["--list"]).output
    assert "passkey" in listed
    assert "model-free" in listed
