"""The tables of docs/migration.md: our columns held to the packages, the façade's defaults to its words."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import vqx
from vqx import KVCacheConfig

PAGE = (Path(__file__).parents[1] / "docs" / "migration.md").read_text()
SECTIONS = re.findall(r"^### ([a-z0-9-]+)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
WORDS = {"half of the budget": 50, "30 % of the budget": 30, "a file for the model": None}
"""Defaults in words, at a budget of 100."""


def rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


TABLES = [(method, rows(section)) for method, section in SECTIONS]


def ours(method: str) -> dict[str, object]:
    """Our options of a method with their defaults."""
    return {field.name: field.default for field in dataclasses.fields(vqx.load(method).config)}


@pytest.mark.parametrize(("method", "table"), TABLES, ids=[method for method, _ in TABLES])
def test_our_options_and_defaults_are_as_the_page_says(method: str, table: list[list[str]]) -> None:
    known, said = ours(method), {row[2].strip("`"): row[3] for row in table if row[2]}
    assert set(said) <= set(known)
    assert {"budget", "n_sink"} <= set(said)
    config = vqx.load(method).config(budget=100)
    for name, default in said.items():
        if default == "required":
            assert known[name] is dataclasses.MISSING, name
        elif default in WORDS:
            assert getattr(config, name) == WORDS[default], name
        else:
            assert repr(known[name]) == default.replace('"', "'"), name


FACADES = [(method, table) for method, table in TABLES if len(table[0]) == 5]


@pytest.mark.parametrize(("method", "table"), FACADES, ids=[method for method, _ in FACADES])
def test_the_facade_uses_the_defaults_that_the_page_says(method: str, table: list[list[str]]) -> None:
    options = KVCacheConfig(method=method).options
    for _, _, name, default, facade in table:
        stated = facade.partition(",")[0].replace('"', "'")
        if name and stated:
            assert repr(options[name.strip("`")]) == stated, name
        elif name and default != "required":
            assert options.get(name.strip("`"), "not set") in ("not set", ours(method)[name.strip("`")]), name


@pytest.mark.parametrize(("method", "table"), FACADES, ids=[method for method, _ in FACADES])
def test_their_fields_are_taken_by_the_facade(method: str, table: list[list[str]]) -> None:
    """At their defaults, but for those that steer what is not here."""
    given = {row[0].strip("`"): row[1] for row in table if row[0] and (row[2] or "not used" in row[4])}
    assert len(given) >= 2
    KVCacheConfig(method=method, **{name: ast.literal_eval(value) for name, value in given.items()})
