"""A fifth method touches no file outside its folder: forty lines, rendered from ``template/``, built,
installed beside the core and the kernels in an empty environment, found by name and put through the laws.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).parent / "template"
METHOD = "half-life"
UV = os.environ.get("UV") or shutil.which("uv") or ""

pytestmark = pytest.mark.skipif(not UV, reason="uv is not installed")


class Newcomer(NamedTuple):
    folder: Path  # the rendered package
    programs: Path  # of the environment it is installed in

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program of the environment, which sees no source of this checkout."""
        return _run(self.programs / program, *arguments, folder=self.folder.parent)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    there = tmp_path_factory.mktemp("newcomer")
    folder = render(METHOD, there / f"vqx-{METHOD}")
    for package in (ROOT / "core", ROOT / "kernels-shared", folder):
        _run(UV, "build", "--wheel", "--no-sources", "-o", there / "wheels", folder=package)
    _run(UV, "venv", there / "environment", folder=there)
    programs = there / "environment" / ("Scripts" if os.name == "nt" else "bin")
    (core,) = (there / "wheels").glob("vqx-*.whl")
    others = (there / "wheels").glob("vqx_*.whl")
    wheels = [f"vqx[cpu,testing] @ {core.as_uri()}", *others]
    # from the root, whose pins apply
    _run(UV, "pip", "install", "--python", programs / "python", *wheels, folder=ROOT)
    return Newcomer(folder, programs)


def render(method: str, folder: Path) -> Path:
    """The template as a package of its own."""
    words = {"METHOD": method, "MODULE": method.replace("-", "_")}
    for source in (*TEMPLATE.rglob("*.toml"), *TEMPLATE.rglob("*.py")):
        target = folder / _filled(str(source.relative_to(TEMPLATE)), words)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_filled(source.read_text(), words))
    return folder


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub("|".join(words), lambda found: words[found[0]], text)


def _run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_method_takes_forty_lines_of_python_and_toml(tmp_path: Path) -> None:
    folder = render(METHOD, tmp_path)
    files = [folder / "pyproject.toml", *folder.glob("src/**/*.py")]
    lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
    assert len(files) == 2
    assert len(lines) <= 40


def test_it_is_found_by_its_name_among_no_others(newcomer: Newcomer) -> None:
    found = newcomer.run("python", "-c", "import vqx; print(vqx.names(), vqx.load('half-life').summary)")
    assert found == "['half-life'] rows that gathered most attention lately\n"


def test_the_command_line_lists_it(newcomer: Newcomer) -> None:
    assert METHOD in newcomer.run("vqx", "methods")


def test_it_keeps_the_laws(newcomer: Newcomer) -> None:
    configuration = ROOT / "pyproject.toml"
    said = newcomer.run(
        "pytest", "-c", str(configuration), "-p", "no:cacheprovider", str(newcomer.folder / "tests")
    )
    closing = said.splitlines()[-1]
    assert re.search(r"(\d+) passed", closing), said
    assert "skipped" not in closing


GENERATE = """
import mlx.core as mx, vqx
from mlx_lm.generate import generate_step
from mlx_lm.models.llama import Model, ModelArgs

mx.random.seed(0)
model = Model(ModelArgs(
    model_type="llama", hidden_size=32, num_hidden_layers=2, intermediate_size=32,
    num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=64,
))
caches = vqx.make_cache(model, "half-life", budget=12)
prompt = mx.arange(20)
tokens = [token for token, _ in generate_step(prompt, model, max_tokens=10, prompt_cache=caches)]
print(len(tokens), {(cache.tokens_seen >= 29, cache.tokens_kept) for cache in caches})
"""


def test_it_generates_text_within_its_budget(newcomer: Newcomer) -> None:
    assert newcomer.run("python", "-W", "error", "-c", GENERATE) == "10 {(True, 12)}\n"
