"""Every code block of the pages, and the test that runs it; ``python integration-tests/blocks.py`` lists all.

A block that no test runs is an error (test_pages.py). What a test leaves out or makes shorter stands here.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "core/*.md", "kernels-shared/*.md", "packages/*/*.md")
    for page in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^    (vqx .*)$", re.MULTILINE)
"""As the helps of commands print them."""

STEPS = "test_first_steps.py (nox session start)"
LEFT_OUT = {  # lines of shell blocks, with the reason
    "uv run nox -s release": "builds and installs every wheel; test_release.py tries what it refuses",
    "uv run nox  ": "is what runs these tests",
    "uv publish": "publishes",
    "comparison.py --report": "fills the page from a whole run; test_comparison.py does, from its record",
    "--engines kvpress": "wants another environment with torch, as docs/peers.md sets it up",
    "--engines velox": "wants VeloxQuant-MLX, as docs/peers.md sets it up",
}
SHORTER = {  # what a command is given behind its own words, where it would ask, download or take minutes
    "studies/comparison.py": "--samples 1 --prompt-tokens 96 --budgets 32 --tasks continuation --only ^h2o$",
    "uvx copier copy": "--data method=mine --defaults",
    "vqx bench": "--model embedded --methods tova --rows 64 --cadences 1 --sequences 1 --tokens 96 --steps 2"
    " --rounds 1",
    "vqx chat": "--max-tokens 4",
    "vqx compare": "--tokens 8",
    "vqx demo": "--method streaming-llm --tokens 2",
    "vqx eval": "--model embedded --methods tova --budgets 64 --tasks passkey --samples 1 --prompt-tokens 96",
    "vqx generate": "--max-tokens 8",
    "vqx inspect": "--tokens 4",
    "vqx plan": "--prompt 128 --tokens 4 --chunk 64",
    "vqx layerwise": "--prompt-tokens 48 --after-tokens 8 --rows 16",
}
PROMPT = "Dear Ada, the ferry leaves at nine. What time is that? "
ELSEWHERE = re.compile(r"mlx-community/[\w.-]+|\bMODEL\b")
"""A model that would be downloaded, in whose place the embedded one stands."""


class Block(NamedTuple):
    page: str  # from the root
    number: int  # on its page
    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page, in their order."""
    name, text = page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
    return [Block(name, number, *found.groups()) for number, found in enumerate(FENCE.finditer(text))]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def run_by(block: Block) -> str:
    """The test that runs it, or why there is nothing to run.

    Raises:
        ValueError: no test runs such a block.
    """
    if block.language == "python":
        return "test_pages.py::test_every_python_block_runs"
    if block.language in ("bash", "sh"):
        return f"{STEPS}::test_every_step_of_a_page_runs"
    if block.language == "toml":
        return "test_pages.py::test_an_entry_point_brings_its_method"
    if block.language == "text" and block.page == "docs/command-line.md":
        return "test_written_pages.py::test_pages_are_as_they_are_written"
    if block.language == "text" and block.page == "README.md":
        return f"{STEPS}::test_every_step_of_a_page_runs (what the demo prints)"
    if block.language == "text" and block.page.startswith("docs/methods/"):
        return "a formula"
    raise ValueError(f"{block.page}: no test runs its block {block.number} in {block.language or 'nothing'}")


def lines_of(block: Block) -> list[str]:
    """The lines of a shell block without their comments, each command on one."""
    lines = re.sub(r" *\\\n *", " ", block.text).splitlines()
    return [line for line in (re.sub(r"(^|\s)# .*$", "", line).rstrip() for line in lines) if line]


def commands() -> dict[str, list[str]]:
    """Every command of ``vqx`` on the pages, examples of helps among them, with the pages that print it."""
    found: dict[str, list[str]] = {}
    for block in BLOCKS:
        lines = EXAMPLE.findall(block.text) if block.language == "text" else []
        if block.language in ("bash", "sh"):
            lines = [line for whole in lines_of(block) for line in whole.split(" && ")]
        for line in lines:
            command = line.removeprefix("uv run ")
            if command.startswith("vqx "):
                found.setdefault(command, []).append(block.page)
    return found


def shorter(line: str) -> str:
    """The same with little to do, on the embedded model."""
    words, end = re.fullmatch(r"(.*?)( < .*| &)?", ELSEWHERE.sub("embedded", line)).groups("")
    return " ".join([words, *(more for name, more in SHORTER.items() if name in words)]) + end


def lay_out(folder: Path) -> None:
    """The files and folders that commands name."""
    for name in ("notes", "FOLDER"):
        (folder / name).mkdir()
        (folder / name / "one.txt").write_text(PROMPT * 12)
    for name in ("letter.txt", "notes.txt", "question.txt", "FILE"):
        (folder / name).write_text(PROMPT)


def listed() -> Iterator[str]:
    """A line for each block."""
    for block in BLOCKS:
        yield f"{block.page} {block.number} [{block.language}]: {run_by(block)}"
        left = [f"{line.strip()}: {why}" for line, why in LEFT_OUT.items() if line in block.text]
        yield from (f"    without {each}" for each in left)


if __name__ == "__main__":
    print("\n".join(listed()))
