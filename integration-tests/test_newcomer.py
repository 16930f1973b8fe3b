"""A new method touches no file outside its folder: forty lines, rendered from ``docs/template``, built,
installed beside the core, the kernels and the evaluation in an empty environment with the newest Python here,
found by name, put through the laws, asked to generate alone and in batches, with kernels, and measured.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import copier
import pytest
from serving import served

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "docs" / "template"
METHOD = "half-life"
PYTHONS = ("3.13", "3.12", "3.11")
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
    for package in (ROOT / "core", ROOT / "kernels-shared", ROOT / "packages" / "vqx-eval", folder):
        _run(UV, "build", "--wheel", "--no-sources", "-o", there / "wheels", folder=package)
    _run(UV, "venv", "--python", newest_python(), there / "environment", folder=there)
    programs = there / "environment" / ("Scripts" if os.name == "nt" else "bin")
    (core,) = (there / "wheels").glob("vqx-*.whl")
    others = (there / "wheels").glob("vqx_*.whl")
    wheels = [f"vqx[cpu,testing] @ {core.as_uri()}", *others]
    # from the root, whose pins apply
    _run(UV, "pip", "install", "--python", programs / "python", *wheels, folder=ROOT)
    return Newcomer(folder, programs)


def newest_python() -> str:
    """The newest Python here that vqx is meant for."""
    for version in PYTHONS:
        find = [UV, "python", "find", "--no-python-downloads", "--system", version]
        found = subprocess.run(find, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    return sys.executable


def render(method: str, folder: Path) -> Path:
    """The template as a package of its own."""
    copier.run_copy(str(TEMPLATE), folder, data={"method": method}, defaults=True, quiet=True)
    return folder


def _run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_method_takes_forty_lines_of_python_and_toml(newcomer: Newcomer) -> None:
    folder = newcomer.folder
    files = [folder / "pyproject.toml", *folder.glob("src/**/*.py")]
    lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
    assert len(files) == 2
    assert len(lines) <= 40


@pytest.mark.parametrize("name", ["Half", "half_life", "2nd", "half-"])
def test_a_name_that_no_package_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="Small letters, digits and hyphens"):
        render(name, tmp_path / "vqx-some")


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


KERNELS = """
import os, numpy as np, vqx_kernels
kept, calls, loops = {}, [], vqx_kernels.gained
vqx_kernels.gained = lambda *given: calls.append(given[0]) or loops(*given)
for device in ("reference", "host"):
    os.environ["VQX_DEVICE"] = device
    caches = vqx.make_cache(model, "half-life", budget=12)
    assert len([*generate_step(prompt, model, max_tokens=10, prompt_cache=caches)]) == 10
    kept[device] = [np.sort(np.array(cache.position)) for cache in caches]
assert set(calls) == {"host"}, calls
print(all(map(np.array_equal, kept["reference"], kept["host"])))
"""


def test_kernels_serve_it_and_keep_the_same_rows(newcomer: Newcomer) -> None:
    assert newcomer.run("python", "-c", GENERATE + KERNELS).endswith("True\n")


BATCH = """
import mlx_lm, sys
model, tokenizer = mlx_lm.load(sys.argv[1])
texts = ("The ferry leaves at nine, and nobody waits.", "Bread wants flour, time, salt.")
prompts = [tokenizer.encode(text) for text in texts]
vqx.attach(model, "half-life", budget=12)
alone = [mlx_lm.generate(model, tokenizer, prompt, max_tokens=9) for prompt in prompts]
together = mlx_lm.batch_generate(model, tokenizer, prompts, max_tokens=9)
print(together.texts == alone, all(alone))
"""


def test_two_prompts_in_a_batch_are_answered_as_each_alone(newcomer: Newcomer, small_model: Path) -> None:
    assert newcomer.run("python", "-c", GENERATE + BATCH, str(small_model)).endswith("True True\n")


SMALL_MODEL = """
import sys
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.utils import save_config
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

folder = Path(sys.argv[1])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(["<end>", *letters])}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
sizes = dict(
    model_type="llama", hidden_size=32, num_hidden_layers=2, intermediate_size=32,
    num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=257,
)
mx.random.seed(0)
weights = dict(tree_flatten(Model(ModelArgs(**sizes)).parameters()))
mx.save_safetensors(str(folder / "model.safetensors"), weights)
save_config({**sizes, "eos_token_id": 0}, folder / "config.json")
"""


@pytest.fixture(scope="module")
def small_model(newcomer: Newcomer) -> Path:
    """A random model in a folder as ``mlx_lm.load`` wants it, whose tokens are bytes."""
    folder = newcomer.folder.parent / "model"
    newcomer.run("python", "-c", SMALL_MODEL, str(folder))
    return folder


WRITE = """
import mlx_lm, sys, vqx
model, tokenizer = mlx_lm.load(sys.argv[1])
print(mlx_lm.generate(model, tokenizer, sys.argv[2], max_tokens=9).encode().hex())
vqx.attach(model, "half-life", budget=12)
print(mlx_lm.generate(model, tokenizer, sys.argv[2], max_tokens=9).encode().hex())
"""


def test_the_server_answers_with_it(newcomer: Newcomer, small_model: Path) -> None:
    prompt = "The ferry leaves at nine, and nobody waits."
    plain, evicted = newcomer.run("python", "-c", WRITE, str(small_model), prompt).split()
    arguments = ["--model", str(small_model), "--method", METHOD, "--budget", "12", "--temp", "0"]
    with served(small_model, arguments, newcomer.programs / "python") as server:
        answer = server.complete(prompt, 9).encode().hex()
    assert answer == evicted != plain


def test_the_evaluation_measures_it(newcomer: Newcomer, small_model: Path) -> None:
    sizes = ["--budgets", "32", "--samples", "2", "--prompt-tokens", "96", "--answer-tokens", "8"]
    asked = ["--model", str(small_model), "--methods", METHOD, "--tasks", "continuation", "--json"]
    pieces = json.loads(newcomer.run("vqx", "eval", *asked, *sizes))
    (measured,) = (piece for piece in pieces if piece["label"] == METHOD)
    assert measured["budget"] == measured["rows"] == 32
    assert measured["evicted"] > 0
    assert len(measured["samples"]) == 2
