"""Filters are made for one model, and refused for every other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import vqx
from click.testing import CliRunner
from vqx.fingerprint import fingerprint
from vqx_qfilters import QFiltersConfig, command
from vqx_qfilters.filters import EMBEDDED, Filters, load, save


class Attention(nn.Module):
    """The attention of a random model: two heads of 16, four query heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(32, 64, bias=False)


@pytest.fixture
def layers() -> Callable[[int, int], list[vqx.LayerInfo]]:
    def make(seed: int, count: int) -> list[vqx.LayerInfo]:
        mx.random.seed(seed)
        return [vqx.LayerInfo(number, "model", Attention()) for number in range(count)]

    return make


@pytest.fixture
def made(tmp_path: Path, layers: Any) -> Path:
    """Filters of two layers of the model with seed 1."""
    path = tmp_path / "filters.safetensors"
    own = fingerprint([layer.attention for layer in layers(1, 2)])
    save(Filters(mx.random.normal((2, 2, 16)).astype(mx.float16), own), path)
    return path


def built(path: Path | None, layers: list[vqx.LayerInfo]) -> Any:
    return vqx.load("qfilters").build(QFiltersConfig(budget=20, filters=path), layers)


def test_what_is_saved_is_loaded(made: Path, layers: Any) -> None:
    found = load(made)
    assert (found.directions.shape, found.directions.dtype) == ((2, 2, 16), mx.float16)
    assert found.made_for(fingerprint([layer.attention for layer in layers(1, 2)]))


def test_the_model_they_were_made_for_may_be_quantised(made: Path, layers: Any) -> None:
    own = layers(1, 2)
    assert len(built(made, own)) == 2
    for layer in own:
        nn.quantize(layer.attention, group_size=32, bits=4)
    assert len(built(made, own)) == 2


def test_another_model_is_refused(made: Path, layers: Any) -> None:
    with pytest.raises(ValueError, match="do not fit the model: they were made with other weights"):
        built(made, layers(2, 2))
    with pytest.raises(ValueError, match="they are for 2 layers, and the model has 3"):
        built(made, layers(1, 3))
    with pytest.raises(ValueError, match="they were made with other weights"):
        built(made, [vqx.LayerInfo(number, "model") for number in range(2)])


def test_heads_of_another_shape_are_refused_at_the_first_forward(made: Path, layers: Any) -> None:
    cache = vqx.EvictingCache(built(made, layers(1, 2))[0], vqx.Options(queries="model"))
    with pytest.raises(ValueError, match=r"the filters are for 2 heads of 16, and the layer has 2 of 8"):
        cache.update_and_fetch(mx.zeros((1, 2, 3, 8)), mx.zeros((1, 2, 3, 8)))


def test_a_model_without_filters_is_told_the_command(layers: Any) -> None:
    for own in (layers(1, 2), layers(1, 30), [vqx.LayerInfo(0, "model")]):
        with pytest.raises(
            ValueError, match="no Q-Filters for this model: make them with vqx qfilters MODEL"
        ):
            built(None, own)


def test_files_that_are_no_filters_are_refused(tmp_path: Path, layers: Any) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        built(tmp_path / "none.safetensors", layers(1, 2))
    text = tmp_path / "text.safetensors"
    text.write_text("no tensors")
    with pytest.raises(ValueError, match="cannot be read"):
        built(text, layers(1, 2))
    other = tmp_path / "other.safetensors"
    mx.save_safetensors(str(other), {"directions": mx.zeros((2, 2, 16))})
    with pytest.raises(ValueError, match="is of the format None, not 'vqx-qfilters-1'"):
        built(other, layers(1, 2))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"recent": 16}, "budget=20 leaves no room beside n_sink=4 and recent=16"),
        ({"filters": 7}, "filters=7: give the path of a file made by vqx qfilters MODEL --out FILE"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        QFiltersConfig(**{"budget": 20, **given})
    assert words in str(refused.value)


def test_those_of_the_embedded_model_come_with_the_package() -> None:
    found = load(EMBEDDED)
    assert found.directions.shape == (30, 3, 64)
    assert found.probe is not None
    assert np.isfinite(np.array(found.directions)).all()


def test_the_command_saves_what_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: Any) -> None:
    out = tmp_path / "made.safetensors"
    seen: list[list[int]] = []

    def queries_of(model: Any, tokens: list[int]) -> dict[int, mx.array]:
        seen.append(tokens)
        return {number: mx.random.normal((2, 3, len(tokens), 16)) for number in (1, 3)}

    class Letters:
        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    attentions = layers(1, 4)
    monkeypatch.setattr(command, "load_model", lambda name: (name, Letters()))
    monkeypatch.setattr(command, "queries_of", queries_of)
    monkeypatch.setattr(command, "attention_of", lambda model, number: attentions[number].attention)
    result = CliRunner().invoke(command.command, ["some-model", "--out", str(out)], catch_exceptions=False)
    assert result.output.strip() == f"{out}: 2 layers of 2 heads, directions of 16 numbers"
    assert [len(piece) for piece in seen] == [2048] * (len(seen) - 1) + [len(seen[-1])]
    assert load(out).made_for(fingerprint([attentions[number].attention for number in (1, 3)]))


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens to read"):
        command.calibrate(nn.Module(), [[]])
