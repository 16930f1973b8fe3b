"""A method that needs no package, and a model that needs no file."""

import vqx  # isort: skip  # before mlx

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import pytest
from vqx import LayerInfo, Method, accumulated
from vqx.host.models import random_llama
from vqx.registry import Registry
from vqx_bench import Subject

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    budget: int
    n_sink: int = 4


def build(config: Config, layers: Sequence[LayerInfo]) -> list[Method]:
    return [Method(accumulated(), config.budget, config.n_sink, recent=4)] * len(layers)


class Plugin:
    @vqx.hookimpl
    def vqx_methods(self) -> list[vqx.MethodSpec]:
        return [vqx.MethodSpec(name="toy", summary="mass", paper="", config=Config, build=build)]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(discover=False)
    registry.register(Plugin())
    monkeypatch.setattr("vqx.build.registry", registry)


@pytest.fixture(scope="session")
def tiny() -> Subject:
    model = random_llama(SIZES, mx.float32)
    return Subject("tiny", model, lambda tokens, caches: model(tokens, cache=caches), 1000)
