"""Tiny models, a tokenizer of characters and toy methods: the evaluation is tested without any plugin."""

import vqx  # before mlx, so that the BLAS is settled

# isort: split

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache
from vqx.host.models import random_llama
from vqx.options import room_beside
from vqx.registry import Registry
from vqx_eval.samples import Batch, Sample
from vqx_eval.task import Wanted

ALPHABET = (
    " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;?!'\"()[]{}-_=+*/<>@#%&|\\~^$`\n"
)
FACTS, VALUES = 64, 8
BLANK, QUESTION, ANSWER = FACTS * VALUES, FACTS * VALUES + 1, FACTS * VALUES + 1 + FACTS


class Characters:
    """Every character is a token."""

    eos_token_ids = (0,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [max(ALPHABET.find(character), 0) for character in text]


@pytest.fixture(scope="session")
def tiny_llama() -> nn.Module:
    """A random llama: 2 layers, 2 KV heads of 16 for 4 query heads."""
    sizes = {
        "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": len(ALPHABET), "max_position_embeddings": 256,
    }  # fmt: skip
    model = random_llama(sizes, mx.float32)
    for layer in model.layers:  # random weights alone attend to all rows alike
        layer.self_attn.q_proj.weight *= 4
        layer.self_attn.k_proj.weight *= 4
    mx.eval(model.parameters())
    return model


class Lookup(nn.Module):
    """A model that looks facts up: one attention, whose queries are the keys of the facts asked for.

    Tokens are facts (a key and a value), a blank, questions (a key), and answers (a value).
    """

    def __init__(self) -> None:
        super().__init__()
        width = FACTS
        tokens = mx.arange(ANSWER + VALUES)
        fact, asked = tokens < BLANK, (tokens >= QUESTION) & (tokens < ANSWER)
        key = mx.where(fact, tokens // VALUES, mx.where(asked, tokens - QUESTION, -1))
        value = mx.where(fact, tokens % VALUES, -1)
        self.named = (key[:, None] == mx.arange(width)).astype(mx.float32)  # [V, D]
        self.asks = 100.0 * self.named * asked[:, None]
        self.worth = (value[:, None] == mx.arange(width)).astype(mx.float32)
        self.layers = [nn.Identity()]  # mlx-lm makes a cache for each

    def __call__(self, tokens: mx.array, cache: list[Any] | None = None) -> mx.array:
        held = cache[0] if cache else KVCache()
        mask = held.make_mask(tokens.shape[1], return_array=False, window_size=None)
        keys, values = held.update_and_fetch(self.named[tokens][:, None], self.worth[tokens][:, None])
        asks = self.asks[tokens][:, None]
        found = scaled_dot_product_attention(asks, keys, values, cache=held, scale=1.0, mask=mask)
        logits = mx.full((*tokens.shape, ANSWER + VALUES), -10.0)
        logits[..., ANSWER:] = 20.0 * found[:, 0, :, :VALUES]
        return logits


@pytest.fixture(scope="session")
def lookup() -> nn.Module:
    """See :class:`Lookup`."""
    return Lookup()


@pytest.fixture
def facts() -> Callable[[float], Batch]:
    """Questions for :class:`Lookup` at a depth: 4 samples of 49 tokens, every fact once, one asked for."""

    def at(depth: float) -> Batch:
        samples = []
        for number in range(4):
            draw = np.random.default_rng([number, int(100 * depth)])
            keys, values = (
                draw.permutation(FACTS)[:48],
                draw.integers(1, VALUES, 48),
            )  # 0 is what a blank gives
            asked = round(depth * 47)
            context = (keys * VALUES + values).tolist()
            answer, question = ANSWER + int(values[asked]), QUESTION + int(keys[asked])
            samples.append(Sample("facts", number, "tune", context, [question], [answer], {"length": 48}))
        return Batch(samples, "agnostic")

    return at


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """Options of the toy methods."""

    budget: int
    n_sink: int = 2

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)


def _unable(held: vqx.Held) -> Any:
    raise ValueError("toy-unable wants to read everything twice")


class Toys:
    """The newest rows (``streaming-llm``, ``toy-newest``), the oldest (``toy-frozen``), one that fails."""

    @vqx.hookimpl
    def vqx_methods(self) -> Iterable[vqx.MethodSpec]:
        def spec(name: str, score: Callable[[vqx.Held], Any]) -> vqx.MethodSpec:
            def build(config: ToyConfig, layers: Sequence[vqx.LayerInfo]) -> list[vqx.Method]:
                return [vqx.Method(vqx.Scorer(score), config.budget, config.n_sink)] * len(layers)

            return vqx.MethodSpec(name=name, summary=name, paper="-", config=ToyConfig, build=build)

        yield spec("streaming-llm", lambda held: 0.0)
        yield spec("toy-newest", lambda held: 0.0)
        yield spec("toy-frozen", lambda held: -held.position)
        yield spec("toy-unable", _unable)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The only methods known are the toys."""
    registry = Registry(discover=False)
    registry.register(Toys())
    monkeypatch.setattr("vqx.build.registry", registry)
    monkeypatch.setattr(vqx, "names", registry.names)
    monkeypatch.setattr(vqx, "load", registry.load)
    return registry


@pytest.fixture
def wanted() -> Wanted:
    """Samples of 96 characters, from two texts."""
    words = ("harbor", "garden", "kettle", "lantern", "ladder", "anchor", "mirror")

    def text(shift: int) -> str:
        drawn = ((words[n % 7], words[(n + shift) % 7], words[(n * n + shift) % 7]) for n in range(20))
        return "\n\n".join(
            "The {} of the {} was seen by nobody, and so the {} stayed.".format(*d) for d in drawn
        )

    texts = {"one": text(1), "two": text(3)}
    return Wanted(
        encode=Characters().encode, prefix=[], texts=texts, samples=10, length=240, answer=16, written=40,
        stream=300, trained=256, never=(0,),
    )  # fmt: skip


@pytest.fixture
def text_of() -> Callable[[list[int]], str]:
    """Characters of token numbers."""
    return lambda tokens: "".join(ALPHABET[token] for token in tokens)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tiny_llama: nn.Module, toys: Registry, tmp_path: Path) -> Path:
    """A folder to work in, where ``vqx eval`` finds the tiny model, and a text file ``text.txt``."""
    monkeypatch.setattr("vqx_eval.setup.load_model", lambda name: (tiny_llama, Characters()))
    monkeypatch.chdir(tmp_path)
    words = ("harbor", "garden", "kettle", "lantern", "ladder", "anchor", "mirror")
    lines = (f"The {words[n % 7]} of the {words[n * n % 5]} was seen by {n} people." for n in range(60))
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    return tmp_path
