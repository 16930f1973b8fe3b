"""``vqx inspect`` in the terminal, as JSON, as a picture and as a page."""

import base64
import gzip
import json
import re
from pathlib import Path

import mlx.nn as nn
import numpy as np
import pytest
import vqx
from click.testing import CliRunner, Result
from rich.console import Console
from vqx_inspect import page, record
from vqx_inspect.command import command
from vqx_inspect.terminal import shaded

GIVEN = ["--method", "toy", "--budget", "16", "--tokens", "5", "--chunk", "10"]


def _run(*more: str, text: str = "The ferry sails at noon, and never on a Sunday.") -> Result:
    return CliRunner().invoke(command, [*GIVEN, "--text", "-", *more], input=text)


def test_without_colour_tokens_that_are_gone_are_dots() -> None:
    said = _run().output.lstrip()  # click 8.1 mixes in the empty line of a progress bar
    assert said.startswith("Th")
    assert "···" in said
    assert "toy, 16 rows per layer" in said


def test_one_head_holds_as_many_tokens_as_its_budget() -> None:
    found = json.loads(_run("--json").output)
    for layer in found["layers"]:
        assert [sum(step is None for step in head) for head in layer["gone"]] == [16, 16]
    shown = _run("--layer", "1", "--head", "0").output.split("\n\ntoy,")[0]
    assert len(found["tokens"]) - shown.count("·") - shown.count("\n") >= 16


def test_a_layer_or_a_head_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert "those that evict are 0 to 2" in str(_run("--layer", "9").exception)
    assert "heads 0 to 1" in str(_run("--head", "2").exception)


def test_an_unknown_method_is_a_wrong_use_with_the_nearest_name() -> None:
    said = CliRunner().invoke(command, ["--method", "toi"])
    assert said.exit_code == 2
    assert "Did you mean 'toy'?" in said.output


def test_colour_shades_words_by_the_heads_that_hold_them() -> None:
    console = Console(force_terminal=True, color_system="truecolor", no_color=False)
    styles = [str(span.style) for span in shaded(console, ["a", "b", "c"], np.array([1, 0.3, 0]), 2).spans]  # type: ignore[arg-type]
    assert "on #0072e6" in styles[0]
    assert "on #56697a" in styles[1]
    assert "strike" in styles[2]
    assert "underline" in styles[2]


def test_the_page_holds_the_recording_and_loads_nothing(tmp_path: Path, tiny_llama: nn.Module) -> None:
    caches = vqx.make_cache(tiny_llama, "toy", budget=16)
    found = record(tiny_llama, caches, [*range(3, 43)], write=4, chunk=10)
    texts = [f"t{number}" for number in range(len(found.tokens) - 1)] + ["</script><b>"]
    source = page(found, texts, "toy & <others>")
    assert "<title>toy &amp; &lt;others&gt;</title>" in source
    assert not re.search(r"(src|href)=|url\(|@import|https?:", source)
    data = json.loads(source.split('id="data">')[1].split("</script>")[0])
    assert data["texts"] == texts
    numbers = np.frombuffer(gzip.decompress(base64.b64decode(data["packed"])), "<u2")
    tokens = len(found.tokens)
    assert numbers[: 2 * tokens].reshape(2, tokens).tolist() == found.gone[0].tolist()
    last = (numbers[-2 * tokens :].astype(np.uint32) << 16).view(np.float32).reshape(2, tokens)
    assert np.array_equal(np.isnan(last), np.isnan(found.scores[-1][-1]))
    assert last == pytest.approx(found.scores[-1][-1], rel=0.01, nan_ok=True)


def test_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra vqx-inspect[plots] is not installed")
    said = _run("--html", str(tmp_path / "kept.html"), "--png", str(tmp_path / "kept.png"))
    assert said.exit_code == 0, said.output
    assert (tmp_path / "kept.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "kept.png").read_bytes().startswith(b"\x89PNG")
    assert said.output.count("wrote") == 2
