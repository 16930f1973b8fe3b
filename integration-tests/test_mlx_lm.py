"""Until a row must go every logit is mlx-lm's own, bit for bit, and no row goes inside a forward."""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.models import llama
from subjects import caches_of, check_full, method, representative, through
from vqx import Options
from vqx.host import watching
from vqx.host.weighing import weighed

ENGINES = {
    "defaults": Options(),
    "every 8": Options(interval=8),
    "whole": Options(prompt="whole"),
    "token": Options(cadence="token"),
    "compact": Options(positions="compact"),
    "keys token": Options(queries="keys", cadence="token"),
    "centred keys": Options(queries="centred-keys"),
}

AMPLE, SMALL = 4096, 40
"""Budgets above and below the length of what is read, in every layer."""

CHUNKS = (32, 1, 30, 33)
"""A prompt of 96 tokens."""


@pytest.fixture(scope="module")
def prose(embedded: Any, texts: dict[str, list[int]]) -> mx.array:
    return mx.array([texts["narrative"][:100]])


@pytest.fixture(scope="module")
def expected(embedded: Any, prose: mx.array) -> mx.array:
    """The embedded model's logits over 96 tokens in chunks and 4 more one by one, with its own caches."""
    logits: mx.array = embedded.read(embedded.plain(), prose, [*CHUNKS, *[1] * 4])
    return logits


@pytest.fixture(scope="module")
def letters() -> mx.array:
    return mx.random.randint(0, 97, (2, 104), key=mx.random.key(4))


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(queries, rows of both heads) of every attention of a llama, layer after layer."""
    seen: list[tuple[int, int]] = []
    attend: Callable[..., mx.array] = llama.scaled_dot_product_attention

    def note(queries: mx.array, keys: mx.array, *others: Any, **options: Any) -> mx.array:
        seen.append((queries.shape[2], keys.shape[1] * keys.shape[2]))
        return attend(queries, keys, *others, **options)

    monkeypatch.setattr(llama, "scaled_dot_product_attention", note)
    return seen


def same(one: mx.array, other: mx.array) -> bool:
    """Bit for bit: an error of one unit in the last place of one logit is a difference."""
    return one.shape == other.shape and bool(mx.array_equal(one, other).item())


@representative
def test_with_an_ample_budget_every_logit_of_the_embedded_model_is_its_own(
    method: str, embedded: Any, prose: mx.array, expected: mx.array
) -> None:
    caches = vqx.make_cache(embedded.model, method, budget=AMPLE)
    assert same(embedded.read(caches, prose, [*CHUNKS, *[1] * 4]), expected)
    assert {cache.tokens_kept for cache in caches} == {100}


@method
def test_until_the_first_eviction_every_logit_of_the_embedded_model_is_its_own(
    method: str, embedded: Any, prose: mx.array, expected: mx.array
) -> None:
    caches = vqx.make_cache(embedded.model, method, budget=SMALL)
    logits = embedded.read(caches, prose, [*CHUNKS[:3], 1])
    least = min(cache.plan.method.budget for cache in caches)
    # the chunk that exceeds a budget is still read whole
    exact = max(stop for start, stop in pairwise(accumulate(CHUNKS[:3], initial=0)) if start <= least)
    assert same(logits[:, :exact], expected[:, :exact])
    check_full(caches, SMALL)
    assert not mx.allclose(logits[:, -1], expected[:, logits.shape[1] - 1], rtol=0, atol=1e-3).item()


@through(ENGINES)
def test_with_an_ample_budget_every_logit_is_the_models_own_whatever_the_options(
    method: str, engine: Options, tiny: Any, letters: mx.array
) -> None:
    lengths = [*CHUNKS, *[1] * 8]
    caches = caches_of(tiny.model, method, engine, budget=AMPLE)
    assert same(tiny.read(caches, letters, lengths), tiny.read(tiny.plain(), letters, lengths))


@through(ENGINES)
def test_until_the_first_eviction_every_logit_is_the_models_own_whatever_the_options(
    method: str, engine: Options, tiny: Any, letters: mx.array
) -> None:
    lengths = [17, *[1] * 64]
    own = tiny.read(tiny.plain(), letters, lengths)
    caches = caches_of(tiny.model, method, engine, budget=SMALL)
    logits = tiny.read(caches, letters, lengths)
    # the token after the budget is full finds room: the row it pushes out goes before the next one
    exact = max(min(cache.plan.method.budget for cache in caches) + 1, 17)
    assert same(logits[:, :exact], own[:, :exact])
    assert not same(logits[:, exact:], own[:, exact:])
    assert all(cache.tokens_kept < cache.tokens_seen for cache in caches)


@through(ENGINES)
def test_a_first_prompt_longer_than_the_budget_is_read_whole(
    method: str, engine: Options, tiny: Any, letters: mx.array
) -> None:
    caches = caches_of(tiny.model, method, engine, budget=SMALL)
    assert same(tiny.read(caches, letters, [104]), tiny.read(tiny.plain(), letters, [104]))
    tiny.read(caches, letters, [1, 1])
    assert all(cache.tokens_kept < min(cache.plan.method.budget + 8, cache.tokens_seen) for cache in caches)


@through(ENGINES)
def test_no_row_goes_inside_a_forward(
    method: str, engine: Options, tiny: Any, letters: mx.array, rows_read: list[tuple[int, int]]
) -> None:
    caches = caches_of(tiny.model, method, engine, budget=SMALL)
    for first, last in pairwise(accumulate([*CHUNKS, *[1] * 20, 25, *[1] * 13], initial=0)):
        before = [cache.tokens_kept for cache in caches]
        rows_read.clear()
        tiny.read(caches, mx.take(letters, mx.arange(first, last) % 104, axis=1), [last - first])
        assert rows_read == [(last - first, 2 * (kept + last - first)) for kept in before]
    assert all(cache.tokens_kept < cache.plan.method.budget + engine.interval for cache in caches)
    assert caches[0].tokens_seen == last == 154


@representative
def test_generate_writes_the_same_text_with_an_ample_budget(
    method: str, embedded: Any, texts: dict[str, list[int]], own_text: str
) -> None:
    caches = vqx.make_cache(embedded.model, method, budget=AMPLE)
    assert write(embedded, texts, prompt_cache=caches) == own_text
    assert caches[0].tokens_seen >= 75


@representative
def test_stream_generate_gives_the_same_tokens_and_probabilities_with_an_ample_budget(
    method: str, embedded: Any, texts: dict[str, list[int]], own_stream: list[tuple[int, mx.array]]
) -> None:
    caches = vqx.make_cache(embedded.model, method, budget=AMPLE)
    found = stream(embedded, texts, prompt_cache=caches)
    assert [token for token, _ in found] == [token for token, _ in own_stream]
    assert all(same(one, other) for (_, one), (_, other) in zip(found, own_stream, strict=True))


def write(embedded: Any, texts: dict[str, list[int]], **options: Any) -> str:
    prompt = texts["manual"][:64]
    text: str = mlx_lm.generate(
        embedded.model, embedded.tokenizer, prompt, max_tokens=12, prefill_step_size=24, **options
    )
    return text


def stream(embedded: Any, texts: dict[str, list[int]], **options: Any) -> list[tuple[int, mx.array]]:
    prompt = texts["source"][:40]
    responses = mlx_lm.stream_generate(
        embedded.model, embedded.tokenizer, prompt, max_tokens=8, prefill_step_size=16, **options
    )
    return [(response.token, response.logprobs) for response in responses]


@pytest.fixture(scope="module")
def own_text(embedded: Any, texts: dict[str, list[int]]) -> str:
    return write(embedded, texts)


@pytest.fixture(scope="module")
def own_stream(embedded: Any, texts: dict[str, list[int]]) -> list[tuple[int, mx.array]]:
    return stream(embedded, texts)


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU has an attention of its own")
@pytest.mark.parametrize("name", ["h2o", "tova", "streaming-llm"])
def test_once_rows_went_heads_that_share_rows_are_multiplied_at_once(
    name: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def noted(*arguments: Any, grouped: bool = False) -> Any:
        asked.append(grouped)
        return weighed(*arguments, grouped=grouped)

    monkeypatch.setattr(watching, "weighed", noted)
    caches = vqx.make_cache(tiny.model, name, budget=20, interval=4)
    for number, length in enumerate([20, *[1] * 12]):
        tiny.read(caches, mx.ones((1, length), mx.int32), [length])
        went = caches[0].tokens_seen > 24
        assert asked.count(True) == (3 * (number - 4) if went else 0), number
    assert went
