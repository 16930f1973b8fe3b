"""Python blocks of the READMEs and the docs run as they are printed; ``vqx`` understands their commands."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from vqx.cli import main
from vqx.testing import MethodLaws

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

RUNNER = """
import functools, json, sys, warnings
import vqx
from vqx.host import embedded

embedded.load_embedded = functools.cache(embedded.load_embedded)
warnings.simplefilter("error")
for page, code in json.load(sys.stdin):
    print("running", page, flush=True)
    model, _ = embedded.load_embedded()
    vqx.detach(model)
    model.__dict__.pop("make_cache", None)
    exec(compile(code, page, "exec"), {"__name__": "page"})
print("all ran")
"""


def test_every_python_block_runs(tmp_path: Path) -> None:
    code = [(str(page.relative_to(ROOT)), "\n".join(BLOCK.findall(page.read_text()))) for page in PAGES]
    code = [(page, text) for page, text in code if text]
    assert len(code) >= 7, "the pages lost their examples"
    ran = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(code),
        capture_output=True,
        text=True,
        timeout=900,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all ran" in ran.stdout


SHELL = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^    (vqx .*)$", re.MULTILINE)
"""As the helps of commands print them."""


def commands(text: str) -> list[list[str]]:
    """The words after ``vqx`` of each of its commands in a page's shell blocks and examples."""
    lines = "\n".join(SHELL.findall(text) + EXAMPLE.findall(text)).replace("\\\n", " ").splitlines()
    split = [re.split(r"&&|[|;<>]", line)[0] if "vqx " in line else "" for line in lines]
    words = [shlex.split(line.replace("uv run vqx", "vqx"), comments=True) for line in split]
    return [line[1:] for line in words if line[:1] == ["vqx"]]


COMMANDS = [(str(page.relative_to(ROOT)), words) for page in PAGES for words in commands(page.read_text())]


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_every_command_of_a_page_is_understood(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name and options, with files and folders there; a page's test of its own runs what it does."""
    monkeypatch.chdir(tmp_path)
    for word in words:
        if word.endswith("/") or word == "FOLDER":
            (tmp_path / word).mkdir(exist_ok=True)
        elif word == "FILE" or re.fullmatch(r"[\w-]+\.(txt|py|md)", word):
            (tmp_path / word).write_text("text")
    understand(words)


def understand(words: list[str]) -> None:
    """Parse a command of ``vqx`` without running it."""
    context = click.Context(main, info_name="vqx")
    name, command, rest = main.resolve_command(context, [*words])
    assert command is not None
    command.make_context(name, rest, parent=context).close()


def test_a_command_that_is_not_understood_would_be_noticed() -> None:
    assert commands("```bash\nvqx demo --budgte 3  # so\n```\n") == [["demo", "--budgte", "3"]]
    with pytest.raises(click.NoSuchOption):
        understand(["demo", "--budgte", "3"])


def test_every_law_is_explained() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    laws = {name.removeprefix("test_") for name in dir(MethodLaws) if name.startswith("test_")}
    table = page.partition("law (`test_…`)")[2].partition("\n\n")[0]
    assert laws == set(re.findall(r"^\| `([a-z_0-9]+)`", table, re.MULTILINE))
