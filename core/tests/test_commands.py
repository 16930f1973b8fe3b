"""Subcommands of packages: found by name, imported when run, and explained where they are broken."""

from importlib.metadata import EntryPoint
from types import ModuleType

import click
import pytest
import vqx
from click.testing import CliRunner
from vqx import cli
from vqx.cli import group


@click.command("weigh")
def weigh() -> None:
    """Say how heavy."""
    click.echo("heavy")


class _Plugin:
    @vqx.hookimpl
    def vqx_commands(self) -> list[click.Command]:
        return [weigh]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Packages that bring ``weigh`` and ``broken``; the names of those that were imported."""
    imported: list[str] = []

    class Entry:
        dist = None

        def __init__(self, name: str, value: str = "some_package") -> None:
            self.name, self.value = name, value

        def load(self) -> object:
            imported.append(self.name)
            if self.name == "broken":
                raise ImportError("no scales")
            return _Plugin()

    found = [Entry("weigh"), Entry("broken"), Entry("other"), Entry("twice", "one"), Entry("twice", "two")]
    monkeypatch.setattr(group, "entry_points", lambda group: found if group == "vqx.commands" else [])
    return imported


def _said(*arguments: str) -> str:
    return CliRunner().invoke(cli.main, list(arguments)).output


def test_a_command_runs_and_no_other_package_is_imported(loaded: list[str]) -> None:
    assert _said("weigh") == "heavy\n"
    assert loaded == ["weigh"]


def test_help_lists_every_command_and_imports_none(loaded: list[str]) -> None:
    said = _said("--help")
    assert all(name in said for name in ("demo", "methods", "weigh", "broken"))
    assert loaded == []


def test_an_unknown_command_suggests_the_nearest(loaded: list[str]) -> None:
    assert "Did you mean 'weigh'?" in _said("wiegh")
    assert loaded == []


def test_a_command_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "entry_points", lambda group: [])
    assert "pip install vqx-eval" in _said("eval")


def test_a_broken_package_is_named_with_its_error(loaded: list[str]) -> None:
    assert "some_package could not be loaded for the command 'broken': ImportError: no scales" in _said(
        "broken"
    )


def test_a_package_that_brings_another_command_is_named(loaded: list[str]) -> None:
    assert "some_package declares the command 'other' and brings 'weigh'" in _said("other")


def test_two_packages_with_one_command_are_both_named(loaded: list[str]) -> None:
    assert "'twice' comes from one and two" in _said("twice")


def test_a_command_of_ones_own_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("methods", "nowhere", "vqx.commands")
    monkeypatch.setattr(group, "entry_points", lambda group: [entry])
    assert "List the eviction methods" in _said("methods", "--help")


def test_a_hook_without_its_mark_brings_nothing() -> None:
    module = ModuleType("careless")
    entry = EntryPoint("weigh", "careless", "vqx.commands")
    module.vqx_commands = lambda: [weigh]  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EntryPoint, "load", lambda self: module)
        with pytest.raises(click.ClickException, match="brings none"):
            group.load([entry])
