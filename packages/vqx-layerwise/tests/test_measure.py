"""The measurement: what it finds where the answer is known, and the command around it."""

import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from click.testing import CliRunner
from mlx_lm.models.llama import Model, ModelArgs
from vqx_layerwise import command as module
from vqx_layerwise.command import command
from vqx_layerwise.measure import measured, samples
from vqx_layerwise.profile import load


class Letters:
    """A tokenizer of one token a character."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) % 64 for letter in text]


def tiny() -> Model:
    mx.random.seed(2)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    return Model(
        ModelArgs(
            model_type="llama", num_hidden_layers=2, vocab_size=64, rms_norm_eps=1e-5, head_dim=16, **sizes
        )
    )


def texts(count: int = 3) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choice("abcdefgh .") for _ in range(400)) for _ in range(count)]


def test_the_full_caches_loss_is_that_of_one_forward_without_a_cache() -> None:
    model, given = tiny(), samples(texts(), Letters(), 200, 40)
    losses = nn.losses.cross_entropy(model(given.text[:, :-1]), given.text[:, 1:])
    assert next(measured(model, given, 64, [0]))[0] == pytest.approx(losses[:, -40:].mean().item(), abs=1e-5)


def test_a_layer_whose_output_is_nothing_loses_nothing_by_keeping_few_rows() -> None:
    model = tiny()
    last: Any = model.layers[1].self_attn
    last.o_proj.weight = mx.zeros_like(last.o_proj.weight)
    first: Any = model.layers[0].self_attn
    first.q_proj.weight, first.k_proj.weight = first.q_proj.weight * 6, first.k_proj.weight * 6
    full, some, none = measured(model, samples(texts(), Letters(), 200, 40), 16, [0, 1])
    assert none == pytest.approx(full, abs=1e-6)
    assert abs(some[0] - full[0]) > 1e-4


def test_keys_are_planted_before_the_question_and_asked_for_at_the_end() -> None:
    given = samples(texts(), Letters(), 200, 40)
    question = Letters().encode("The pass key is ")
    for row in given.asked.tolist():
        key = row[-5:]
        assert row[-5 - len(question) : -5] == question
        planted = [i for i in range(len(row) - 5) if row[i : i + 5] == key]
        assert len(planted) == 2
        assert planted[1] < 200


def test_texts_that_are_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter than 500 tokens"):
        samples(texts(), Letters(), 400, 100)


def test_samples_are_the_same_every_time() -> None:
    one, other = (samples(texts(), Letters(), 200, 40) for _ in range(2))
    assert mx.array_equal(one.asked, other.asked).item()


def test_the_command_writes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_model", lambda name: (tiny(), Letters()))
    for number, text in enumerate(texts(2)):
        (tmp_path / f"{number}.txt").write_text(text)
    out = tmp_path / "profile.json"
    arguments = ["tiny", "--out", str(out), "--text", str(tmp_path), "--prompt-tokens", "150"]
    done = CliRunner().invoke(command, [*arguments, "--after-tokens", "20", "--rows", "16"])
    assert done.exit_code == 0, done.output
    found = load(out)
    assert len(found.loss) == 2
    assert found.about["texts"] == 2
    short = CliRunner().invoke(command, [*arguments, "--after-tokens", "900"])
    assert short.exit_code == 2
    assert "give longer ones" in short.output
