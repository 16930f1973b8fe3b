"""The command line as a person, a script and a shell meet it, with every package installed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from vqx.cli import main

CONTEXT = click.Context(main, **main.context_settings)
COMMANDS = main.list_commands(CONTEXT)
PROMPT = "The ferry sails from the slip at noon, and never on a Sunday. " * 3


def _run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments], input=given)


def _shell(script: str, **environment: str) -> str:
    """What a shell prints that finds ``vqx`` on its path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given = {**os.environ, "PATH": path, **environment}
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=given, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_with_examples_and_prints_json(name: str) -> None:
    command = main.get_command(CONTEXT, name)
    assert command is not None
    said = _run(name, "--help").output
    assert "Examples:" in said
    assert f"\n    vqx {name}" in said
    assert any("--json" in param.opts for param in command.params)


def test_help_lists_every_command_and_begins_with_examples() -> None:
    said = _run("--help").output
    assert all(f"\n  {name} " in said for name in COMMANDS)
    assert "Examples:\n    vqx methods" in said


def test_a_wrong_use_exits_with_2_and_names_the_nearest_right_word() -> None:
    wrong = {
        ("compar",): "Did you mean 'compare'?",
        ("inspect", "--budgt", "3"): "--budget",
        ("inspect", "--method", "h20"): "Did you mean 'h2o'?",
        ("inspect", "--method", "h2o:recnt=3"): "did you mean 'recent'?",
        ("compare", "hello", "--method", "tova:heads=all"): "choose one of 'layer', 'each'",
        ("generate", "--metod", "h2o"): "did you mean --method?",
        ("serve", "--prot", "8080"): "did you mean --port?",
        ("eval", "--tasks", "passky"): "Did you mean 'passkey'?",
        ("plan", "Llama-3.2-3"): "Did you mean 'Llama-3.2-3B'?",
        ("bench", "--what", "decod"): "Did you mean 'decode'?",
        ("demo", "--method", "h2o:recent=3"): "vqx compare takes their options",
        ("compare", "", "--method", "h2o"): "the prompt is empty",
        ("compare", "hello", "--model", "./none", "--method", "h2o"): "no such folder",
    }
    for arguments, hint in wrong.items():
        result = _run(*arguments)
        assert (result.exit_code, hint in result.output) == (2, True), result.output
        assert "Traceback" not in result.output


def test_a_failure_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vqx.host.embedded.importlib.util.find_spec", lambda name: None)
    result = _run("compare", "hello", "--method", "h2o")
    assert result.exit_code == 1
    assert result.output.startswith("Error: the embedded model is not installed")


def test_compare_sets_texts_beside_each_other_and_counts_tokens_alike() -> None:
    given = ["compare", "-", "--method", "streaming-llm", "--method", "h2o:recent=4", "--raw"]
    result = _run(*given, "--budget", "16", "--tokens", "8", "--json", given=PROMPT)
    assert result.exit_code == 0, result.output
    full, *others = json.loads(result.output)
    assert [one["name"] for one in others] == ["streaming-llm", "h2o:recent=4"]
    assert full["alike"] == full["tokens"] == 8
    assert all(one["rows"] == 16 and one["megabytes"] < full["megabytes"] for one in others)
    assert all(one["alike"] < 8 and one["text"] != full["text"] for one in others)


def test_compare_prints_a_table_of_texts_and_one_of_figures() -> None:
    result = _run("compare", PROMPT, "--method", "sink", "--budget", "16", "--tokens", "4", "--raw")
    assert result.exit_code == 0, result.output
    assert result.output.count("full cache") == 3
    assert "alike" in result.output


def test_methods_says_what_is_here_and_the_rest_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.loads(_run("methods", "--json").output)
    assert {"h2o", "tova"} <= {row["method"] for row in rows}
    assert all(row["version"] for row in rows)
    assert {row["kernel"] for row in rows} == {"its own", "shared"}
    monkeypatch.setattr("vqx.cli.commands.methods._is_here", lambda package: package != "vqx-h2o")
    assert [row["install"] for row in json.loads(_run("methods", "--available", "--json").output)] == [
        "pip install vqx-h2o"
    ]
    assert "pip install vqx-h2o" in _run("methods", "--available").output


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_a_shell_completes_commands_options_and_methods() -> None:
    script = """
        eval "$(_VQX_COMPLETE=bash_source vqx)"
        try() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _vqx_completion vqx
            echo "${COMPREPLY[*]}"
        }
        try vqx ins
        try vqx inspect --me
        try vqx inspect --method snap
    """
    assert _shell(script).split("\n")[:3] == ["inspect", "--method", "snapkv"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_written_for_the_shells_that_people_use(shell: str) -> None:
    assert "_VQX_COMPLETE" in _shell("vqx", _VQX_COMPLETE=f"{shell}_source")


def test_no_colour_where_no_terminal_is_or_none_is_wanted() -> None:
    assert "\x1b" not in _shell("vqx methods; vqx nothing 2>&1 || true")
    if shutil.which("script"):
        seen = _shell("script -qec 'vqx inspect --tokens 1 --method sink --budget 8' /dev/null", NO_COLOR="1")
        assert "\x1b[38;" not in seen
        assert "\x1b[48;" not in seen


def test_a_reader_that_leaves_early_is_no_error() -> None:
    assert "Error" not in _shell("vqx methods 2>&1 | head -1")
