"""Code blocks of the pages run: Python as printed, ``vqx`` shortened, on four layers of a model."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from blocks import (
    BLOCKS,
    ELSEWHERE,
    LEFT_OUT,
    PAGES,
    ROOT,
    SHORTER,
    Block,
    commands,
    lay_out,
    lines_of,
    run_by,
    shorter,
)
from vqx.cli import main
from vqx.testing import MethodLaws

PYTHON = [block for block in BLOCKS if block.language == "python"]


def test_every_block_is_run_by_a_test() -> None:
    fences = [
        line for page in PAGES for line in page.read_text().splitlines() if re.match(r" *(```|~~~)", line)
    ]
    assert 2 * len(BLOCKS) == len(fences), "a fence of another form"
    assert all(run_by(block) for block in BLOCKS)
    with pytest.raises(ValueError, match="no test runs its block 3 in ruby"):
        run_by(Block("docs/start.md", 3, "ruby", "puts 1"))


def test_what_is_left_out_or_shortened_is_on_a_page() -> None:
    lines = [line for block in BLOCKS if block.language in ("bash", "sh") for line in block.text.splitlines()]
    assert [part for part in LEFT_OUT if not any(part in line for line in lines)] == []
    lines += commands()
    assert [part for part in SHORTER if not any(part in line for line in lines)] == []


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
    pages = {block.page: [each.text for each in PYTHON if each.page == block.page] for block in PYTHON}
    assert len(pages) >= 7, "the pages lost their examples"
    run([sys.executable, "-c", RUNNER], [(page, "\n".join(code)) for page, code in pages.items()], tmp_path)


def run(program: list[str], given: object, folder: Path) -> None:
    """Run a program in a process of its own, which says ``all ran`` at its end."""
    ran = subprocess.run(
        program,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=900,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all ran" in ran.stdout


def test_every_command_of_a_page_runs(tmp_path: Path) -> None:
    """Shortened, on the embedded model's first four layers; servers are started by test_first_steps.py."""
    lay_out(tmp_path)
    found = [shorter(command) for command in commands() if not command.startswith("vqx serve")]
    assert len(found) >= 40, "the pages lost their commands"
    run([sys.executable, str(ROOT / "integration-tests" / "run_commands.py"), "4"], found, tmp_path)


@pytest.mark.parametrize("command", [one for one in commands() if one.startswith("vqx serve")])
def test_every_command_that_serves_is_understood(command: str) -> None:
    understand(command.split()[1:])


def understand(words: list[str]) -> None:
    """Parse a command of ``vqx`` without running it."""
    context = click.Context(main, info_name="vqx")
    name, command, rest = main.resolve_command(context, [*words])
    assert command is not None
    command.make_context(name, rest, parent=context).close()


def test_a_command_that_is_not_understood_would_be_noticed() -> None:
    assert lines_of(Block("a.md", 0, "bash", "vqx demo \\\n  --budgte 3  # so\n")) == ["vqx demo --budgte 3"]
    with pytest.raises(click.NoSuchOption):
        understand(["demo", "--budgte", "3"])


def test_the_embedded_model_stands_in_place_of_one_that_would_be_downloaded() -> None:
    assert shorter("vqx qfilters mlx-community/Some-3B-4bit --out f") == "vqx qfilters embedded --out f"
    assert shorter("vqx compare - < letter.txt") == "vqx compare - --tokens 8 < letter.txt"
    assert not any(ELSEWHERE.search(shorter(command)) for command in commands())


LOADED = """
import sys, vqx
print(vqx.load("persistent").summary, vqx.load("persistent").build.__module__)
"""


def test_an_entry_point_brings_its_method(tmp_path: Path) -> None:
    """The page's module and its entry point, installed by hand."""
    (block,) = (block for block in BLOCKS if block.language == "toml")
    (code,) = (each.text for each in PYTHON if each.page == block.page)
    (group, entries), *_ = tomllib.loads(block.text)["project"]["entry-points"].items()
    (folder := tmp_path / "vqx_persistent").mkdir()
    hook = code.partition("class Plugin:\n")[2].partition("\n\n")[0].replace("(self)", "()")
    (folder / "plugin.py").write_text(
        code.partition("class Plugin:")[0] + "\n".join(line[4:] for line in hook.splitlines())
    )
    (info := tmp_path / "vqx_persistent-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vqx-persistent\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    said = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert said.stdout == "fading attention mass vqx_persistent.plugin\n", said.stderr


def test_every_law_is_explained() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    laws = {name.removeprefix("test_") for name in dir(MethodLaws) if name.startswith("test_")}
    table = page.partition("law (`test_…`)")[2].partition("\n\n")[0]
    assert laws == set(re.findall(r"^\| `([a-z_0-9]+)`", table, re.MULTILINE))
