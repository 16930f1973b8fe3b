"""Streams of random rows, tiny models and toy methods: the core is tested without any plugin."""

import vqx  # before mlx, so that the BLAS is settled

# isort: split

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx.options import room_beside
from vqx.registry import Registry


class Stream(NamedTuple):
    """What a model would hand to one layer, token by token."""

    queries: mx.array  # [B, H * G, T, D]
    keys: mx.array  # [B, H, T, D]
    values: mx.array  # [B, H, T, Dv]


class Reads(NamedTuple):
    """What attention read in one forward."""

    keys: mx.array  # [B, H, n, D]
    values: mx.array  # [B, H, n, Dv]
    position: mx.array  # [B, H, n]


@pytest.fixture
def stream() -> Callable[..., Stream]:
    """Random rows; a value's first number is its token's position."""

    def make(
        tokens: int,
        *,
        batch: int = 1,
        heads: int = 2,
        group: int = 2,
        width: int = 8,
        seed: int = 0,
        dtype: mx.Dtype = mx.float32,
    ) -> Stream:
        random = np.random.default_rng(seed)
        queries = random.normal(size=(batch, heads * group, tokens, width))
        keys, values = random.normal(size=(2, batch, heads, tokens, width))
        values[..., 0] = np.arange(tokens)
        return Stream(*(mx.array(a.astype(np.float32)).astype(dtype) for a in (queries, keys, values)))

    return make


@pytest.fixture
def feed() -> Callable[..., list[Reads]]:
    """Feed a stream to a cache in forwards of the lengths given, from the cache's next token on."""

    def forward(
        cache: vqx.EvictingCache,
        stream: Stream,
        lengths: Iterable[int],
        *,
        sinks: mx.array | None = None,
        scale: float | None = None,
    ) -> list[Reads]:
        reads = []
        for length in lengths:
            now = slice(cache.tokens_seen, cache.tokens_seen + length)
            queries, keys, values = (a[..., now, :] for a in stream)
            assert keys.shape[2] == length, "the stream is too short"
            mask = cache.make_mask(length)
            keys, values = cache.update_and_fetch(keys, values)
            cache.observe(queries, keys, scale or keys.shape[-1] ** -0.5, mask, sinks)
            reads.append(Reads(keys, values, cache.position))
            mx.eval(cache.state, reads[-1])
        return reads

    return forward


@pytest.fixture
def kept() -> Callable[[vqx.EvictingCache], dict[str, np.ndarray[Any, Any]]]:
    """Positions and statistics of the rows held, oldest first: each ``[B, H, n]``."""

    def rows(cache: vqx.EvictingCache) -> dict[str, np.ndarray[Any, Any]]:
        assert cache.layer is not None
        held = {"position": cache.layer.rows.position, **cache.layer.rows.columns}
        order = np.argsort(np.array(held["position"]), axis=2)
        return {name: np.take_along_axis(np.array(a), order, axis=2) for name, a in held.items()}

    return rows


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., nn.Module]:
    """A random llama: 2 KV heads of 16 for 4 query heads, 97 tokens."""
    from vqx.host.models import random_llama

    def make(layers: int = 2, *, seed: int = 0, dtype: mx.Dtype = mx.float32, **changes: Any) -> nn.Module:
        sizes = {
            "hidden_size": 64,
            "num_hidden_layers": layers,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 97,
        }
        model = random_llama({**sizes, **changes}, dtype, seed=seed)
        for layer in model.layers:  # random weights alone attend to all rows alike
            layer.self_attn.q_proj.weight *= 4
            layer.self_attn.k_proj.weight *= 4
        mx.eval(model.parameters())
        return model

    return make


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """Options of the toy methods."""

    budget: int
    n_sink: int = 2
    recent: int = 2
    decay: float = 1.0

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, self.recent)


class Toys:
    """A plugin of two methods: accumulated attention, and the newest rows."""

    @vqx.hookimpl
    def vqx_methods(self) -> list[vqx.MethodSpec]:
        def mass(config: ToyConfig, layers: Sequence[vqx.LayerInfo]) -> list[vqx.Method]:
            return [
                vqx.Method(
                    vqx.accumulated(decay=config.decay, itself=layer.queries == "model"),
                    config.budget,
                    config.n_sink,
                    config.recent,
                )
                for layer in layers
            ]

        def newest(config: ToyConfig, layers: Sequence[vqx.LayerInfo]) -> list[vqx.Method]:
            alike = vqx.Scorer(score=lambda held: 0.0)
            return [vqx.Method(alike, config.budget, config.n_sink)] * len(layers)

        adapted = {"recent": 0, "decay": 0.98}
        return [
            vqx.MethodSpec(
                name="toy", summary="mass", paper="-", config=ToyConfig, build=mass, adapted=adapted
            ),
            vqx.MethodSpec(name="toy-newest", summary="newest", paper="-", config=ToyConfig, build=newest),
        ]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The only methods known are "toy" and "toy-newest"."""
    registry = Registry(discover=False)
    registry.register(Toys())
    monkeypatch.setattr("vqx.build.registry", registry)
    return registry
