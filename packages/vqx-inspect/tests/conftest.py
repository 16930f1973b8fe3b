"""A tiny model, a tokenizer of characters and a toy method: pictures are tested without any plugin."""

import vqx  # before mlx, so that the BLAS is settled

# isort: split

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from vqx.host.models import random_llama
from vqx.registry import Registry

ALPHABET = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;?!<>/-'\"\n"


class Characters:
    """Every character is a token."""

    eos_token_ids = (-1,)

    def encode(self, text: str) -> list[int]:
        return [max(ALPHABET.find(character), 0) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(ALPHABET[token] for token in tokens)


@pytest.fixture(scope="session")
def tiny_llama() -> nn.Module:
    """A random llama: 3 layers, 2 KV heads of 16 for 4 query heads."""
    sizes = {
        "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": len(ALPHABET), "max_position_embeddings": 1024,
    }  # fmt: skip
    return random_llama(sizes, mx.float32)


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """Options of the toy method."""

    budget: int
    n_sink: int = 2


class _Toy:
    """Keeps rows whose first key number is greatest, so that every head keeps others."""

    @vqx.hookimpl
    def vqx_methods(self) -> list[vqx.MethodSpec]:
        def build(config: ToyConfig, layers: Sequence[vqx.LayerInfo]) -> list[vqx.Method]:
            scorer = vqx.Scorer(score=lambda held: held.keys[..., 0])
            return [vqx.Method(scorer, config.budget, config.n_sink, recent=3) for _ in layers]

        return [vqx.MethodSpec(name="toy", summary="Toy.", paper="none", config=ToyConfig, build=build)]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tiny_llama: nn.Module) -> None:
    """A registry that knows the toy method alone, and a model that is loaded at once."""
    alone = Registry(discover=False)
    alone.register(_Toy())
    for place in ("vqx.registry.registry", "vqx.build.registry", "vqx.cli.asking.registry"):
        monkeypatch.setattr(place, alone)

    def load(name: str) -> tuple[nn.Module, Any]:
        return tiny_llama, Characters()

    monkeypatch.setattr("vqx.host.models.load_model", load)
