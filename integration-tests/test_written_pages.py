"""Parts of docs pages that are written by code say what the code says now."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vqx.registry import registry
from write_pages import DOCS

WRITE = "import json, write_pages; print(json.dumps({str(f): t for f, t in write_pages.pages().items()}))"


@pytest.fixture(scope="module")
def written() -> dict[Path, str]:
    """Made in a process of its own: what other tests leave in this one must not show in a page."""
    here, env = (
        Path(__file__).parent,
        {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    )
    done = subprocess.run(
        [sys.executable, "-c", WRITE], cwd=here, env=env, capture_output=True, text=True, check=True
    )
    return {Path(file): text for file, text in json.loads(done.stdout.splitlines()[-1]).items()}


def test_pages_are_as_they_are_written(written: dict[Path, str]) -> None:
    stale = [str(file.relative_to(DOCS)) for file, text in written.items() if file.read_text() != text]
    assert stale == [], "run python integration-tests/write_pages.py"


def test_every_method_has_a_page_with_all_its_parts(written: dict[Path, str]) -> None:
    parts = ["Idea", "Formula", "What it keeps", "Options", "Evidence", "Limits", "Departures from the paper"]
    listed = written[DOCS / "methods.md"]
    for method in registry.names():
        page = re.search(rf"\[{re.escape(method)}\]\((methods/[a-z0-9-]+\.md)\)", listed)
        assert page is not None, method
        assert re.findall(r"^## (.*)$", written[DOCS / page[1]], re.MULTILINE) == parts


def test_the_first_page_leads_to_every_other() -> None:
    linked = set(re.findall(r"\]\(([a-z-]+\.md)\)", (DOCS / "README.md").read_text()))
    assert {file.name for file in DOCS.glob("*.md")} - linked == {"README.md"}


def test_figures_on_a_page_are_those_of_the_comparison(written: dict[Path, str]) -> None:
    run = json.loads((DOCS / "results" / "comparison.json").read_text())
    (text,) = (table for table in run["tables"] if table["task"] == "continuation")
    cell = next(cell for cell in text["cells"] if (cell["label"], cell["budget"]) == ("streaming-llm", 256))
    mean, error = cell["loss"][:2]
    assert f"{mean:.3f} ± {error:.3f}" in written[DOCS / "methods" / "streaming-llm.md"]
