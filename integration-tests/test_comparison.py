"""The comparison's page and the README say what ``comparison.json`` says; the defaults keep their bounds."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import vqx
from vqx.host.caches import BEST
from vqx.settings import settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "comparison.md", ROOT / "README.md"]


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    """The module that writes tables out of the record."""
    folder = str(Path(__file__).parent / "studies")
    sys.path.insert(0, folder)
    try:
        import compared.page as page

        yield page
    finally:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "comparison.json").read_text())
    return found


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_tables_on_a_page_are_those_of_the_record(
    page: ModuleType, record: dict[str, Any], file: Path
) -> None:
    text = file.read_text("utf-8")
    assert page.filled(text, page.parts(record)) == text, "run studies/comparison.py --report"


def test_another_figure_in_the_record_changes_the_page(page: ModuleType, record: dict[str, Any]) -> None:
    other = json.loads(json.dumps(record))
    (table,) = (table for table in other["tables"] if table["task"] == "continuation")
    cell = next(c for c in table["cells"] if (c["label"], c["budget"]) == ("fusion", 256))
    cell["loss"][0] += 0.01
    for file in PAGES:
        text = file.read_text("utf-8")
        assert page.filled(text, page.parts(other)) != text


def test_every_marked_stretch_of_the_page_is_written_by_the_record(
    page: ModuleType, record: dict[str, Any]
) -> None:
    marked = {name for _, name, _ in page.MARKERS.findall(PAGES[0].read_text("utf-8"))}
    assert len(marked) > 10
    assert marked <= set(page.parts(record))


def test_defaults_keep_their_bounds(page: ModuleType, record: dict[str, Any]) -> None:
    assert [BEST[question][0] for question in (None, "later", "end")] == [
        page.DEFAULT,
        page.LATER,
        page.END,
    ]
    floors = list(page.floors(record))
    assert len(floors) == 10
    assert [floor.says for floor in floors if not floor.holds] == []


def test_every_method_installed_is_advised_upon(page: ModuleType) -> None:
    advised = {setting.method for label in page.ADVICE for setting in settings([label.split(":")[0]])}
    names = {name for method in advised for name in method.replace(")", "").split("(")}
    others = {"streaming-llm", "sink", "knorm"}  # the baseline by two names, and l2norm by another
    assert set(vqx.names()) - others <= names
