"""What a release is refused for, and old plugins under the core of today."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.version import Version
from releases.agreement import Package, disagreements, read, refusals

ROOT = Path(__file__).parents[1]
FOLDERS = [
    file.parent for file in sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("packages/*/pyproject.toml")])
]
OLD = sorted(Path(__file__).parent.glob("releases/old/*.whl"))
CORE = f"vqx {read(ROOT / 'core').version}"
COMMIT = "a" * 40


def package(version: str, *sections: str, fragments: tuple[str, ...] = ()) -> Package:
    return Package("vqx-some", Version(version), [Version(one) for one in sections], list(fragments))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_version_changelog_and_fragments_agree(folder: Path) -> None:
    assert disagreements(read(folder)) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (package("0.2.0", "0.1.0"), "its changelog opens with 0.1.0"),
        (package("0.1.0", "0.2.0", "0.1.0"), "its changelog opens with 0.2.0"),
        (package("0.1.0"), "its changelog opens with None"),
        (package("0.1.0.dev0", "0.1.0"), "already at 0.1.0: raise"),
        (package("0.2.0", "0.2.0", "0.2.0"), "one section each"),
        (package("0.2.0", "0.2.0", "0.3.0"), "do not fall"),
    ],
)
def test_a_planted_disagreement_is_found(planted: Package, said: str) -> None:
    assert any(said in one for one in disagreements(planted))


@pytest.mark.parametrize(
    "agreed",
    [
        package("0.1.0", "0.1.0"),
        package("0.2.0", "0.2.0", "0.1.1", "0.1.0"),
        package("0.1.1.dev0", "0.1.0", fragments=("7.fixed.md",)),
    ],
)
def test_what_agrees_is_let_through(agreed: Package) -> None:
    assert disagreements(agreed) == []


@pytest.mark.parametrize(
    ("tag", "released", "tagged", "said"),
    [
        ("vqx-some-v0.2.0", package("0.1.0", "0.1.0"), {}, "its tag is vqx-some-v0.1.0"),
        ("vqx-some-v0.2.0", package("0.2.0", "0.1.0"), {}, "its changelog opens with 0.1.0"),
        ("vqx-some-v0.1.0", package("0.1.0", "0.1.0", fragments=("7.fixed.md",)), {}, "7.fixed.md wait"),
        ("vqx-some-0.1.0", package("0.1.0", "0.1.0"), {}, "is no tag of a release"),
        ("vqx-other-v0.1.0", package("0.1.0", "0.1.0"), {}, "there is no package 'vqx-other'"),
        ("vqx-some-v0.1.1.dev0", package("0.1.1.dev0", "0.1.0"), {}, "is a development version"),
        ("vqx-some-v0.1.1", package("0.1.1.dev0", "0.1.0"), {}, "is a development version"),
        (
            "vqx-some-v0.1.0",
            package("0.1.0", "0.1.0"),
            {"vqx-some-v0.1.0": "b" * 40},
            "stands on bbbbbbbbb already",
        ),
        (
            "vqx-some-v0.1.9",
            package("0.1.9", "0.1.9"),
            {"vqx-some-v0.1.10": COMMIT},
            "0.1.10 is released already",
        ),
    ],
)
def test_a_tag_that_disagrees_is_refused(
    tag: str, released: Package, tagged: dict[str, str], said: str
) -> None:
    found = refusals(tag, {released.name: released}, tagged, COMMIT)
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    "tagged", [{}, {"vqx-some-v0.1.1": COMMIT, "vqx-some-v0.1.0": "b" * 40, "v9": "c" * 40}]
)
def test_a_tag_that_agrees_may_be_set(tagged: dict[str, str]) -> None:
    released = package("0.1.1", "0.1.1", "0.1.0")
    assert refusals("vqx-some-v0.1.1", {"vqx-some": released}, tagged, COMMIT) == []


def test_fragments_become_the_section_of_the_next_release(tmp_path: Path) -> None:
    folder = tmp_path / "vqx-some"
    folder.mkdir()
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(FOLDERS[-1] / name, folder)
    before = read(folder)
    (folder / "changelog.d").mkdir()
    (folder / "changelog.d" / "+window.added.md").write_text("A window.\n")
    (folder / "changelog.d" / "12.fixed.md").write_text("A leak.\n")
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace(f'version = "{before.version}"', 'version = "9.0.0"'))
    tag = f"{before.name}-v9.0.0"
    said = refusals(tag, {before.name: read(folder)}, {}, COMMIT)
    assert any("+window.added.md" in one for one in said)
    assert any("opens with" in one for one in said)
    where = ("--config", str(ROOT / "pyproject.toml"), "--dir", str(folder), "--name", before.name)
    towncrier = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "9.0.0", *where]
    subprocess.run(towncrier, check=True, cwd=tmp_path, capture_output=True)
    assert refusals(tag, {before.name: read(folder)}, {}, COMMIT) == []
    assert read(folder).sections == [Version("9.0.0"), *before.sections]
    text = (folder / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog of ")
    assert "### Added\n\n- A window.\n\n### Fixed\n\n- A leak. (#12)\n" in text


def test_the_citation_names_the_core_s_latest_release_and_every_paper() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {read(ROOT / 'core').sections[0]}\n" in text
    for folder in FOLDERS:
        for line in (folder / "pyproject.toml").read_text().splitlines():
            if line.startswith("urls"):
                assert line.split('"')[1] in text, folder.name


HEAD = """
import sys
sys.path[:0] = sys.argv[1:]  # before the plugins that are installed
import vqx, vqx.registry
"""

GENERATE = """
import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.llama import Model, ModelArgs

mx.random.seed(0)
model = Model(ModelArgs(
    model_type="llama", hidden_size=32, num_hidden_layers=2, intermediate_size=32,
    num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=64,
))
for method in ("h2o", "protect(h2o)"):
    assert ".whl" in vqx.load(method.partition("(")[0]).build.__code__.co_filename
    for engine in ({}, {"interval": 4}, {"cadence": "token"}, {"prompt": "whole"}, {"queries": "keys"}):
        caches = vqx.make_cache(model, method, budget=12, **engine)
        tokens = generate_step(mx.arange(30), model, max_tokens=9, prefill_step_size=8, prompt_cache=caches)
        assert len(list(tokens)) == 9
        for cache in caches:
            assert cache.tokens_seen >= 38 and cache.tokens_kept <= 12 + engine.get("interval", 1) - 1
print("kept within the budget")
"""

LOAD = """
for method in ("h2o", "tova"):
    try:
        print(vqx.load(method).name)
    except vqx.PluginError as error:
        print(error)
"""


def said_by(script: str, *arguments: str | Path) -> str:
    """What a new Python prints, where old plugins hide the new ones."""
    command = [sys.executable, "-W", "error", "-c", HEAD + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_old_plugins_run_on_this_core() -> None:
    assert len(OLD) == 2
    assert said_by(GENERATE, *OLD) == "kept within the budget\n"


def test_a_plugin_from_the_future_is_refused_in_words_and_alone(tmp_path: Path) -> None:
    future = tmp_path / "vqx_h2o-0.1.0-py3-none-any.whl"
    (old,) = (one for one in OLD if one.name == future.name)
    with ZipFile(old) as before, ZipFile(future, "w") as after:
        for name in before.namelist():
            after.writestr(name, before.read(name).replace(b'name="h2o",', b'name="h2o", protocol=2,'))
    said = said_by(LOAD, future).splitlines()
    assert said == [f"vqx-h2o 0.1.0 speaks protocol 2, {CORE} speaks 1: upgrade vqx", "tova"]


def test_a_plugin_of_the_past_is_refused_in_words_when_the_protocol_was_raised() -> None:
    said = said_by(f"vqx.registry.PROTOCOL = 2\n{LOAD}", *OLD).splitlines()
    assert said[0] == f"vqx-h2o 0.1.0 speaks protocol 1, {CORE} speaks 2: upgrade the plugin"
