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
from subjects import METHODS, NATURES, caches_of, check_full, method, through
from vqx import Options

BUDGET, PROMPT, STEPS = 256, 300, 8
TOKEN = mx.array([[506]])

ENGINES = {
    "every 8": Options(interval=8),
    "token": Options(cadence="token"),
    "compact": Options(positions="compact"),
    "keys token": Options(queries="keys", cadence="token"),
    "centred keys": Options(queries="centred-keys"),
}


@pytest.fixture(scope="module")
def after_a_prompt(embedded: Any, texts: dict[str, list[int]]) -> dict[str, list[Any]]:
    """Every method's caches, and mlx-lm's ring buffer of the same size, full and two tokens on.

    Layers that share their rows look at the forward itself, so it has to be their own.
    """
    caches = {name: vqx.make_cache(embedded.model, name, budget=BUDGET) for name in METHODS}
    caches["ring"] = [RotatingKVCache(max_size=BUDGET, keep=4) for _ in embedded.model.layers]
    together = [each for name, each in caches.items() if name == "ring" or not NATURES[name].shares_layers]
    prompt = mx.array([texts["narrative"][:PROMPT]])
    embedded.read_together(prompt, together)
    for each in caches.values():
        if each[0].empty():
            embedded.read(each, prompt, [PROMPT])
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
    assert {cache.tokens_seen for cache in caches} == {PROMPT + 5}
    check_full(caches, BUDGET)


@through(ENGINES)
def test_no_generated_token_waits_for_the_device_whatever_the_options(
    method: str, engine: Options, tiny: Any
) -> None:
    caches, token = caches_of(tiny.model, method, engine, budget=24), TOKEN % 97
    # the first token after a prompt may wait: it looks whether the prompt held NaN
    tiny.read(caches, mx.random.randint(0, 97, (1, 42), key=mx.random.key(1)), [40, 1, 1])
    with no_wait():
        for _ in range(10):
            token = mx.argmax(tiny.model(token, cache=caches)[:, -1:], axis=-1)
    mx.eval(token)
    assert all(cache.tokens_kept < min(cache.plan.method.budget + 8, cache.tokens_seen) for cache in caches)


@method
def test_rows_positions_and_memory_do_not_grow_while_tokens_are_generated(
    method: str, embedded: Any, after_a_prompt: dict[str, list[Any]]
) -> None:
    caches = copy.deepcopy(after_a_prompt[method])
    embedded.read(caches, TOKEN, [1])  # what the copy shares with the original is written for the first time
    full = [cache for cache in caches if cache.plan.method.budget < PROMPT]
    held, layer = sum(cache.nbytes for cache in full), max(cache.nbytes for cache in full)
    mx.clear_cache()
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    for _ in range(STEPS):
        mx.eval(embedded.model(TOKEN, cache=caches), [cache.state for cache in caches])
        for cache in full:
            keys, values = cache.keys_and_values()
            assert keys.shape == values.shape == (*cache.position.shape, 64)
            assert keys.shape[1] * keys.shape[2] == 3 * (cache.plan.method.budget + 1)
    assert sum(cache.nbytes for cache in full) == held
    assert {cache.offset for cache in caches} == {PROMPT + 3 + STEPS}
    # logits and one layer's scratch, more of it where a cut reads rows; were they copied, it would be all
    nature = NATURES[method]
    most = 3 * layer if not (nature.looks_back or nature.sums_up) else sum(cache.nbytes for cache in caches)
    assert mx.get_peak_memory() - active < most


@pytest.mark.alone
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
        print(*(f", {name} {one:.2f}x" for name, one in slower.items()), sep="")
    assert {cache.tokens_seen for name in METHODS for cache in caches[name]} == {PROMPT + 2 + STEPS}
    # every token evicts here: a cut that reads rows or a window of queries takes longer
    reading = {name for name in METHODS if NATURES[name].looks_back or NATURES[name].sums_up}
    assert max(slower[name] for name in METHODS if name not in reading) < 2
    assert max(slower[name] for name in reading) < 4
