"""How a prompt is cut into chunks does not decide what token cadence keeps.

What is claimed is this. Given the same queries, keys and values, the kept rows are the same whatever the
chunks: shown for every layer of the embedded model, with what its layers offered when it read a text with a
full cache. In a live model only the first layer gets the same queries and keys whatever the chunks: shown for
it too. Deeper layers are offered other ones, since a chunk attends to all of its own rows besides those kept,
so that hidden states depend on the chunks once rows are gone. In block cadence chunks matter by definition.
"""

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama
from subjects import NATURES, REPRESENTATIVES, cache_of, caches_of, through
from vqx import Options
from vqx.testing import Kept, Shape, Stream, feed, remaining, same_bits

LENGTH, BUDGET, DECODED = 384, 96, 6
CHUNKS = (64, 256, 2048)

LAYERS = Shape(batch=10, heads=3, group=3, width=64, value_width=64)
"""Ten layers of the embedded model, in the place of a batch."""

ENGINES = {
    "model": Options(queries="model", cadence="token"),
    "keys": Options(queries="keys", cadence="token"),
    "centred keys": Options(queries="centred-keys", cadence="token"),
}
REPLAYED = [method for nature, method in REPRESENTATIVES.items() if nature.allows(ENGINES["model"])]


def cuts(chunk: int) -> list[int]:
    """The prompt in chunks, as mlx-lm cuts it, then single tokens."""
    prompt = LENGTH - DECODED
    whole, rest = divmod(prompt, chunk)
    return [chunk] * whole + [rest] * (rest > 0) + [1] * DECODED


@pytest.fixture(scope="module")
def recorded(embedded: Any, texts: dict[str, list[int]]) -> list[Stream]:
    """What the 30 layers are offered as the model reads 384 tokens: three streams of ten layers each."""
    offered: list[Stream] = []
    attend = llama.scaled_dot_product_attention

    def record(queries: mx.array, keys: mx.array, values: mx.array, *others: Any, **options: Any) -> mx.array:
        offered.append(Stream(queries, keys, values))
        return attend(queries, keys, values, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "scaled_dot_product_attention", record)
        tokens = mx.array([texts["narrative"][:LENGTH]])
        mx.eval(embedded.model.model(tokens, cache=embedded.plain()), offered)
    # layers stand in the place of a batch: what is held of one does not depend on the others
    return [Stream(*map(mx.concatenate, zip(*offered[i : i + 10], strict=True))) for i in (0, 10, 20)]


@through(ENGINES)
def test_what_a_layer_keeps_does_not_depend_on_the_chunks(
    method: str, engine: Options, recorded: list[Stream]
) -> None:
    nature = NATURES[method]
    every = engine.queries == "model" and method in REPLAYED and (nature.accumulates or nature.looks_back)
    for offered in recorded if every else recorded[1:2]:
        one, *others = (
            remaining(feed(cache_of(method, engine, LAYERS, budget=BUDGET), offered, cuts(chunk)))
            for chunk in CHUNKS
        )
        assert one.position.shape == (10, 3, BUDGET)
        for other in others:
            alike(one, other)


@pytest.mark.parametrize("method", REPLAYED)
def test_what_the_first_layer_of_a_live_model_keeps_does_not_depend_on_the_chunks(
    method: str, shallow: Any, texts: dict[str, list[int]]
) -> None:
    tokens = mx.array([texts["source"][:LENGTH]])
    kept = []
    for chunk in CHUNKS:
        first, _ = caches = caches_of(shallow.model, method, budget=BUDGET, cadence="token")
        read(shallow, caches, tokens, cuts(chunk))
        kept.append(remaining(first))
    for other in kept[1:]:
        assert np.array_equal(kept[0].position, other.position)


def test_block_cadence_does_depend_on_the_chunks(recorded: list[Stream]) -> None:
    """So that the tests above are seen to watch something."""
    engine = Options(queries="model")
    small, middle, large = (
        remaining(feed(cache_of("h2o", engine, LAYERS, budget=BUDGET), recorded[0], cuts(chunk)))
        for chunk in CHUNKS
    )
    assert not np.array_equal(small.position, middle.position)
    assert not np.array_equal(middle.position, large.position)


def read(reader: Any, caches: list[Any], tokens: mx.array, lengths: Iterable[int]) -> None:
    """As ``Reader.read``, without the logits, which are most of the work of a shallow model."""
    start = 0
    for length in lengths:
        hidden = reader.model.model(tokens[:, start : start + length], cache=caches)
        mx.eval(hidden, [cache.state for cache in caches])
        start += length


def alike(one: Kept, other: Kept) -> None:
    """The same rows; statistics may differ by what another order of additions does in float32."""
    assert np.array_equal(one.position, other.position)
    assert same_bits(one.keys, other.keys)
    assert same_bits(one.values, other.values)
    for name, column in one.columns.items():
        np.testing.assert_allclose(column, other.columns[name], rtol=1e-5, atol=1e-4)
