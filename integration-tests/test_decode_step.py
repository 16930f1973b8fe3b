"""A generated token costs no wait for the device, no rows or memory, and about the time of a ring buffer."""

import copy
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import RotatingKVCache

METHODS = vqx.names()
BUDGET, PROMPT, STEPS = 256, 300, 15
TOKEN = mx.array([[506]])

ENGINES: list[dict[str, Any]] = [
    {"interval": 8},
    {"cadence": "token"},
    {"positions": "compact"},
    {"queries": "keys", "cadence": "token"},
    {"queries": "centred-keys"},
]

method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def after_a_prompt(embedded: Any, texts: dict[str, list[int]]) -> dict[str, list[Any]]:
    """Every method's caches, and mlx-lm's ring buffer of the same size, full and two tokens on."""
    caches = {name: vqx.make_cache(embedded.model, name, budget=BUDGET) for name in METHODS}
    caches["ring"] = [RotatingKVCache(max_size=BUDGET, keep=4) for _ in embedded.model.layers]
    embedded.read_together(mx.array([texts["narrative"][:PROMPT]]), caches.values())
    for each in caches.values():
        embedded.read(each, mx.array([[7, 8]]), [1, 1])
    return caches


@contextmanager
def no_wait() -> Iterator[None]:
    """Whatever makes Python wait for an array raises."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("this waits for the device")

    def checked(convert: Any) -> Any:
        def converted(data: Any, *others: Any, **options: Any) -> Any:
            return refuse() if isinstance(data, mx.array) else convert(data, *others, **options)

        return converted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__dlpack__"):
            patch.setattr(mx.array, name, refuse)
        for name in ("eval", "async_eval", "synchronize"):
            patch.setattr(mx, name, refuse)
        for name in ("array", "asarray", "ascontiguousarray"):
            patch.setattr(np, name, checked(getattr(np, name)))
        yield


WAITS = {
    "item": lambda number: number.item(),
    "tolist": lambda number: number.tolist(),
    "bool": lambda number: bool(number),
    "int": lambda number: int(number),
    "float": lambda number: float(number),
    "numpy array": lambda number: np.array(number),
    "numpy asarray": lambda number: np.asarray(number),
    "eval": lambda number: mx.eval(number),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_wait_would_be_noticed(wait: Any) -> None:
    number = mx.array(1.0)
    with no_wait(), pytest.raises(AssertionError, match="waits for the device"):
        wait(number)
    wait(number)


@method
def test_no_generated_token_of_the_embedded_model_waits_for_the_device(
    method: str, embedded: Any, after_a_prompt: dict[str, list[Any]]
) -> None:
    caches, token = copy.deepcopy(after_a_prompt[method]), TOKEN
    with no_wait():
        for _ in range(3):
            token = mx.argmax(embedded.model(token, cache=caches)[:, -1:], axis=-1)
    mx.eval(token)
    assert {(cache.tokens_seen, cache.tokens_kept) for cache in caches} == {(PROMPT + 5, BUDGET)}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda one: " ".join(map(str, one.values())))
@method
def test_no_generated_token_waits_for_the_device_whatever_the_options(
    method: str, engine: dict[str, Any], tiny: Any
) -> None:
    caches, token = vqx.make_cache(tiny.model, method, budget=24, **engine), TOKEN % 97
    # the first token after a prompt may wait: it looks whether the prompt held NaN
    tiny.read(caches, mx.random.randint(0, 97, (1, 42), key=mx.random.key(1)), [40, 1, 1])
    with no_wait():
        for _ in range(10):
            token = mx.argmax(tiny.model(token, cache=caches)[:, -1:], axis=-1)
    mx.eval(token)
    assert all(cache.tokens_kept < 24 + 8 < cache.tokens_seen for cache in caches)


@method
def test_rows_positions_and_memory_do_not_grow_while_tokens_are_generated(
    method: str, embedded: Any, after_a_prompt: dict[str, list[Any]]
) -> None:
    caches = copy.deepcopy(after_a_prompt[method])
    embedded.read(caches, TOKEN, [1])  # what the copy shares with the original is written for the first time
    held, layer = sum(cache.nbytes for cache in caches), max(cache.nbytes for cache in caches)
    mx.clear_cache()
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    for _ in range(STEPS):
        mx.eval(embedded.model(TOKEN, cache=caches), [cache.state for cache in caches])
        for cache in caches:
            assert cache.size() == cache.position.shape[2] == BUDGET + 1
            assert cache.keys_and_values()[0].shape == (1, 3, BUDGET + 1, 64)
    assert sum(cache.nbytes for cache in caches) == held
    assert {cache.offset for cache in caches} == {PROMPT + 3 + STEPS}
    # logits and one layer's scratch; were rows copied, it would be all 30 layers
    assert mx.get_peak_memory() - active < 3 * layer


def test_a_token_takes_about_as_long_as_with_a_ring_buffer_of_the_same_size(
    embedded: Any, after_a_prompt: dict[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    caches = copy.deepcopy(after_a_prompt)
    spent: dict[str, list[float]] = {name: [] for name in caches}
    for _ in range(STEPS):
        for name, each in caches.items():
            start = time.perf_counter()
            mx.eval(embedded.model(TOKEN, cache=each))
            spent[name].append(time.perf_counter() - start)
    # in pairs, so that what else the machine does at a time weighs on both
    ring = spent.pop("ring")
    slower = {
        name: statistics.median(one / other for one, other in zip(times, ring, strict=True))
        for name, times in spent.items()
    }
    with capsys.disabled():
        print(f"\nms per token at {BUDGET} rows: ring buffer {1e3 * statistics.median(ring):.0f}", end="")
        for name, times in spent.items():
            print(f", {name} {1e3 * statistics.median(times):.0f} ({slower[name]:.2f}x)", end="")
        print()
    assert {cache.tokens_seen for name in METHODS for cache in caches[name]} == {PROMPT + 2 + STEPS}
    assert max(slower.values()) < 1.6
