"""What is held, counted by MLX's own allocator: by a cache, and at the worst moment of a forward."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from click.testing import CliRunner
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import phi3
from subjects import caches_of, method
from vqx import cli
from vqx.host import forecast, memory
from vqx.host.pace import TASKS, Pace
from vqx.host.shapes import SHAPES, config_of, shaped
from vqx.settings import settings
from vqx.state import attention, turn
from vqx.state.turn import EARLY
from vqx_kernels.testing import pretended

SMALL = {"num_hidden_layers": 3, "hidden_size": 256, "head_dim": 64, "num_key_value_heads": 4}
SINGLE = 200
"""Bytes of arrays of one number, which the allocator rounds up."""


@pytest.fixture
def counted() -> Iterator[None]:
    """Freed memory is given back at once, not kept for arrays to come, which may be smaller."""
    before = mx.set_cache_limit(0)
    gc.collect()
    yield
    mx.set_cache_limit(before)


def held_since(before: int) -> int:
    mx.synchronize()
    return mx.get_active_memory() - before


@pytest.mark.parametrize("interval", [1, 3])
@method
def test_a_cache_holds_the_bytes_that_it_says_and_no_others(
    method: str, interval: int, make_llama: Any, counted: None
) -> None:
    model = make_llama(**SMALL)
    text = mx.random.randint(0, 97, (1, 600), key=mx.random.key(1))
    caches = caches_of(model, method, budget=64, interval=interval)
    mx.eval(text)
    before, most = held_since(0), 0
    for length in (300, 300, *[1] * 5):
        model(text[:, :length], cache=caches)
        mx.eval([cache.state for cache in caches])
        said = sum(cache.nbytes for cache in caches)
        assert abs(held_since(before) - said) <= SINGLE
        most = max(most, said)
    assert said < most / 3, "what was evicted is still held"


@pytest.mark.parametrize("length", [256, 300])
def test_a_prompt_holds_nothing_of_a_product_that_queries_share(length: int, counted: None) -> None:
    sizes = {"model_type": "phi3", "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 64, "rms_norm_eps": 1e-5}
    model = phi3.Model(phi3.ModelArgs.from_dict({**sizes, **heads}))
    text = mx.zeros((1, length), mx.int32)
    mx.eval(text, model.parameters())
    caches, before = caches_of(model, "streaming-llm", budget=64), held_since(0)
    model(text, cache=caches)
    mx.eval([cache.state for cache in caches])
    assert abs(held_since(before) - sum(cache.nbytes for cache in caches)) <= SINGLE


@pytest.mark.parametrize("method", ["h2o", "morphkv", "ada", "squeezeattention"])
def test_a_text_that_left_a_batch_holds_the_bytes_that_it_says(
    method: str, make_llama: Any, counted: None
) -> None:
    """mlx-lm's own caches hold the whole batch until they are read again."""
    model, texts = make_llama(**SMALL), [[*range(length)] for length in (30, 80, 90, 97)]
    caches = [caches_of(model, method, budget=64) for _ in texts]
    before, left = held_since(0), []
    generator = BatchGenerator(model)
    generator.insert(texts, [4, 8, 12, 4], caches=caches)
    del caches
    while len(left) < len(texts):
        left += [ended.prompt_cache for ended in generator.next_generated() if ended.finish_reason]
    generator.close()
    del generator
    gc.collect()
    said = [sum(cache.nbytes for cache in caches) for caches in left]
    # beside them what a step of the batch told MLX once for all layers: its counts, and who fills which rows
    assert abs(held_since(before) - sum(said)) <= 10 * SINGLE
    assert min(said) > 1000 * SINGLE


@method
def test_a_full_cache_holds_a_tenth_more_than_its_rows_at_most(method: str, make_llama: Any) -> None:
    """Once the queries that it looks back at, and the one row more, are few beside the rows."""
    model = make_llama(num_hidden_layers=4, num_attention_heads=9, num_key_value_heads=3, head_dim=64)
    text = mx.random.randint(0, 97, (1, 600), key=mx.random.key(1))
    window = caches_of(model, method, budget=200)[0].plan.method.scorer.window
    budget = max(24, 12 + 18 * window)  # a token's nine queries weigh as much as one and a half of its rows
    caches, start = caches_of(model, method, budget=budget), 0
    for length in (2 * budget + 12, *[1] * 24):
        model(text[:, start : start + length], cache=caches)
        mx.eval([cache.state for cache in caches])
        start += length
    sums = sum(note.nbytes for cache in caches for note in cache.layer.notes.values())
    assert sum(cache.nbytes for cache in caches) - sums <= 1.1 * sum(cache.kept_bytes for cache in caches)
    assert all(cache.kept_bytes == cache.tokens_kept * 2 * 3 * 64 * 4 for cache in caches)
    assert any(cache.tokens_kept < cache.tokens_seen for cache in caches)


WITHIN = ("h2o", "tova", "morphkv", "r-kv", "snapkv", "chunkkv", "critical")
LEAST = {
    **dict.fromkeys(WITHIN, 24),
    "morphkv:window=8": 142,
    "r-kv:window=8": 142,
    "snapkv:window=32": 532,
    "expected-attention": 1070,
}
"""With layers of SmolLM2: rows from which on all that is held is a tenth more at most (24: from fewer)."""


@pytest.mark.parametrize("setting", LEAST)
def test_a_tenth_more_is_held_from_so_many_rows_on(setting: str, make_llama: Any) -> None:
    ((method, options),) = settings([setting])
    model = make_llama(num_hidden_layers=1, num_attention_heads=9, num_key_value_heads=3, head_dim=64)
    least, row = LEAST[setting], 2 * 3 * 64 * 4
    within = []
    for budget in (least - 2, least):
        caches = vqx.make_cache(model, method, **{"budget": budget, **options})
        for length in (budget + 1, 1, 1):
            model(mx.ones((1, length), mx.int32), cache=caches)
            mx.eval([cache.state for cache in caches])
        within.append(sum(cache.nbytes for cache in caches) <= 1.1 * budget * row)
        assert caches[0].tokens_kept == budget < caches[0].tokens_seen
    assert within == [least == 24, True]


BEYOND = {"morphkv": 8, "r-kv": 8, "snapkv": 32, "critical": 32}
"""Queries that are held beside a great budget: from so many rows on they are few."""


@pytest.mark.parametrize("method", BEYOND)
def test_from_128_rows_on_the_usual_window_is_held_and_one_given_always(method: str, make_llama: Any) -> None:
    model, usual = make_llama(num_hidden_layers=1), BEYOND[method]

    def window(**options: Any) -> int:
        plan = vqx.make_cache(model, method, **options)[0].plan
        assert plan.method.recent == plan.method.scorer.window
        return int(plan.method.scorer.window)

    assert [window(budget=budget) for budget in (8, 24, 64, 127, 128)] == [1, 1, 4, 7, usual]
    assert window(budget=24, window=8) == 8
    assert window(budget=200, window=3) == 3


@pytest.mark.parametrize("method", ["h2o", "tova"])
def test_a_cache_that_takes_tokens_back_holds_the_bytes_that_it_says(
    method: str, make_llama: Any, counted: None
) -> None:
    model = make_llama(**SMALL)
    text = mx.random.randint(0, 97, (1, 600), key=mx.random.key(1))
    caches = vqx.make_cache(model, method, budget=64, undo=3)
    mx.eval(text)
    before, start = held_since(0), 0
    for length in (100, 60, *[1] * 8, 4, 4, 1, 3):
        model(text[:, start : start + length], cache=caches)
        mx.eval([cache.state for cache in caches])
        start += length
        assert abs(held_since(before) - sum(cache.nbytes for cache in caches)) <= SINGLE, start
    assert caches[0].tokens_kept < caches[0].tokens_seen


@pytest.mark.parametrize("method", ["h2o", "tova", "snapkv"])
@pytest.mark.parametrize("room", [-1, 2**27])
def test_a_prompt_takes_no_more_than_a_tile_above_the_plan(
    room: int, method: str, make_llama: Any, counted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "TILE", 2**17)
    model = make_llama(**{**SMALL, "num_hidden_layers": 6})
    early = EARLY.set(room)
    try:
        told = vqx.plan(model, method, budget=64, prompt=1025, chunk=256, tokens=2)
        caches = vqx.make_cache(model, method, budget=64)
        text = mx.random.randint(0, 97, (1, 1024), key=mx.random.key(1))
        mx.eval(text)
        beside = held_since(told.weights)
        mx.reset_peak_memory()
        for first in range(0, 1024, 256):
            model(text[:, first : first + 256], cache=caches)
            mx.eval([cache.state for cache in caches])
    finally:
        EARLY.reset(early)
    assert mx.get_peak_memory() - beside <= told.prompt + 4 * attention.TILE
    assert caches[0].tokens_kept < caches[0].tokens_seen


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("method", ["h2o", "tova", "streaming-llm"])
def test_the_peak_of_a_prompt_that_begins_early_is_foretold(
    method: str, every: int, make_llama: Any, counted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "EVERY", every)
    model = make_llama(**{**SMALL, "num_hidden_layers": 6, "intermediate_size": 512})
    text = mx.random.randint(0, 97, (1, 512), key=mx.random.key(1))
    mx.eval(text)
    told, found = [], []
    for room in (-1, 2**27):
        early = EARLY.set(room)
        try:
            plan = vqx.plan(model, method, budget=64, prompt=513, chunk=256, tokens=1)
            caches = vqx.make_cache(model, method, budget=64)
            beside = held_since(plan.weights)
            mx.reset_peak_memory()
            for first in (0, 256):
                model(text[:, first : first + 256], cache=caches)
                mx.eval([cache.state for cache in caches])
            told.append(plan.prompt)
            found.append(mx.get_peak_memory() - beside)
        finally:
            EARLY.reset(early)
    assert found[0] < found[1], "old rows are held while a forward that began is written down"
    assert 0.95 < told[1] / found[1] < 1.2


@pytest.mark.parametrize("sequences", [1, 16])
@pytest.mark.parametrize("method", ["h2o", "fusion", "tova", "squeezeattention", "full"])
def test_the_peak_is_foretold(method: str, sequences: int, make_llama: Any, counted: None) -> None:
    model = make_llama(**{**SMALL, "intermediate_size": 512, "vocab_size": 65536})
    shape = {"budget": 64, "prompt": 257, "chunk": 128, "tokens": 4}
    caches = model.make_cache() if method == "full" else vqx.make_cache(model, method, budget=64)
    told = vqx.plan(model, method, sequences=sequences, **shape)
    text = mx.random.randint(0, 97, (sequences, 260), key=mx.random.key(1))
    mx.eval(text, [cache.state for cache in caches if not cache.empty()])
    beside = held_since(told.weights)
    peaks = []
    for first, last in ((0, 128), (128, 256), *((at, at + 1) for at in range(256, 260))):
        mx.synchronize()  # what the forward before held is let go of a moment after its results are there
        mx.reset_peak_memory()
        logits = model(text[:, first:last], cache=caches)
        mx.eval([cache.state for cache in caches], logits[:, -1:] if last - first == 1 else [])
        peaks.append(mx.get_peak_memory() - beside)
        del logits  # of a prompt nobody asks for them, and their graph would hold what they are made of
    for said, found in ((told.prompt, max(peaks[:2])), (told.decode, max(peaks[2:]))):
        assert 0.95 < said / found < 1.2  # on a busy machine MLX runs less far ahead, and holds less


@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("method", ["streaming-llm", "h2o", "tova", "keyformer", "snapkv"])
def test_on_cuda_the_plan_reads_what_layers_hold_together(
    method: str, interval: int, make_llama: Any
) -> None:
    """Of a prompt in two chunks, and of the tokens that one launch decides for in all layers."""
    model = make_llama(**SMALL)
    with pretended():
        plan = vqx.plan(model, method, budget=64, interval=interval, prompt=257, chunk=128, tokens=7)
        caches = vqx.make_cache(model, method, budget=64, interval=interval)
        for length in (128, 128, *[1] * 7):
            model(mx.zeros((1, length), mx.int32), cache=caches)
            mx.eval([cache.state for cache in caches])
    held = sum(cache.nbytes for cache in caches)
    assert held > 3 * 2 * 64 * 4 * 64 * 4, "keys and values of three layers"
    assert abs(plan.cache - held) < 0.1 * held


def test_a_step_at_which_buffers_grow_is_foretold_wherever_it_comes(make_llama: Any) -> None:
    model = make_llama(**SMALL)
    shape: dict[str, Any] = {"chunk": 128, "tokens": 12, "sequences": 16}
    at_once, later = (vqx.plan(model, "full", prompt=prompt, **shape).decode for prompt in (257, 256))
    assert later == at_once


def test_a_gpu_is_at_most_so_many_operations_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(x: mx.array, y: mx.array) -> list[mx.array]:
        for _ in range(1000):
            x = x @ y + 1  # a new buffer, which the sum takes over
        return [x]

    x = mx.zeros((64, 64))
    graph = memory.traced(chain, [x, x])
    pairs = TASKS * 50
    for moved, least, most in ((0.0, pairs, pairs + 100), (1e9, 50, 250)):
        monkeypatch.setattr(memory, "pace", lambda speed=moved: Pace(100, 1e9, 1, 0, 1e12, speed))
        assert least <= memory.peak(graph, held=2) / x.nbytes <= most


def test_a_gpu_is_further_behind_where_float32_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(x: mx.array, y: mx.array) -> list[mx.array]:
        for _ in range(400):
            x = x @ y + 1
        return [x]

    def peak(dtype: mx.Dtype, single: float) -> float:
        monkeypatch.setattr(memory, "pace", lambda: Pace(10, 1e9, 1, 0, 2 * 64**3 / 10, 1e9, single))
        x = mx.zeros((64, 64), dtype)
        return memory.peak(memory.traced(chain, [x, x]), held=2) / x.nbytes

    assert peak(mx.bfloat16, 0.1) == peak(mx.bfloat16, 1.0) == peak(mx.float32, 1.0) < peak(mx.float32, 0.1)


def test_a_function_that_begins_early_holds_less_where_the_device_keeps_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """100 pieces of five products and five sums."""

    def chain(x: mx.array, y: mx.array) -> list[mx.array]:
        ends = []
        for _ in range(100):
            for _ in range(5):
                x = x @ y + 1
            ends.append(x)
        return [*ends[:-1], x]

    x = mx.zeros((64, 64))
    graph = memory.traced(chain, [x, x])
    whole = graph._replace(results=graph.results[-1:])

    def peaks(products: float) -> list[float]:
        monkeypatch.setattr(memory, "pace", lambda: Pace(1000, 1e9, 1, 0, products, 1e12))
        return [memory.peak(each, held=2, begun=len(each.results) - 1) / x.nbytes for each in (graph, whole)]

    early, late = peaks(2 * 64**3)  # a product takes a microsecond
    assert 5 <= early <= 15
    assert late > 400
    assert peaks(1.0)[0] > 400, "a device that never comes so far holds all of them"


def test_arguments_are_held_until_what_began_early_is_written_down() -> None:
    def plus(*given: mx.array) -> list[mx.array]:
        made = [one + 1 for one in given]
        return [made[1], *made]

    given = [mx.zeros((64, 64)) for _ in range(8)]
    graph = memory.traced(plus, given)
    whole = graph._replace(results=graph.results[1:])
    assert memory.peak(whole) // given[0].nbytes == 8, "each is written over"
    assert memory.peak(graph, begun=1) // given[0].nbytes == 9, "but for one, which began while all were held"


def test_a_gpu_is_waited_for_where_products_of_float32_are_clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(x: mx.array, y: mx.array) -> list[mx.array]:
        for _ in range(400):
            x = x @ y + 1
        return [x]

    def peak(dtype: mx.Dtype, rows: int, columns: int, waits: bool) -> float:
        monkeypatch.setattr(memory, "pace", lambda: Pace(20, 1e9, 1, 0, 1.0, 1.0, 1.0, waits))
        x, y = mx.zeros((rows, columns), dtype), mx.zeros((columns, columns), dtype)
        return (memory.peak(memory.traced(chain, [x, y]), held=2) - y.nbytes) / x.nbytes

    assert peak(mx.float32, 128, 256, False) == peak(mx.bfloat16, 128, 256, True) > 100
    assert peak(mx.float32, 64, 256, True) > 100
    assert peak(mx.float32, 128, 64, True) > 100
    assert peak(mx.float32, 128, 256, True) < 40, "one task under way, and what it lets go of a moment later"


@pytest.mark.parametrize("ordered", [True, False])
def test_what_a_kernel_reads_out_of_order_is_copied_where_it_asks_for_order(ordered: bool) -> None:
    x, turned, made = (memory.Array((64, 32), mx.float32) for _ in range(3))
    operations = [
        memory.Operation("Transpose", [x], [turned], [[1, 0]]),
        memory.Operation("CustomKernel", [turned], [made], [ordered]),
    ]
    assert memory.peak(memory.Graph([x], [], operations, [made])) == (2 + ordered) * x.nbytes


def test_a_plan_evaluates_nothing_and_leaves_the_model_as_it_was(make_llama: Any, counted: None) -> None:
    model = make_llama()
    text, before = mx.array([[1, 2, 3]]), held_since(0)
    logits = model(text)
    mx.eval(logits)
    vqx.plan("Llama-3.1-8B", "h2o", budget=512, prompt=600, tokens=2)
    vqx.plan(model, "h2o", budget=64, prompt=600, tokens=2)
    assert held_since(before) < 2**20
    assert mx.array_equal(model(text), logits).item()


def test_the_greatest_budget_that_fits_is_found() -> None:
    model = shaped({**SHAPES["Llama-3.2-1B"], "num_hidden_layers": 2})
    shape: dict[str, Any] = {"prompt": 4097, "chunk": 256, "tokens": 2}
    found = vqx.plan(model, "tova", memory=int(0.85e9), **shape)
    assert found.budget is not None
    more = vqx.plan(model, "tova", budget=found.budget + 64, **shape)
    assert found.peak <= 0.85e9 < more.peak
    with pytest.raises(ValueError, match=r"no budget fits into 0\.10 GB: with 64 rows the peak is"):
        vqx.plan(model, "tova", memory=int(1e8), **shape)


@pytest.mark.parametrize("method", ["tova", "pyramidkv", "snapkv"])
def test_few_forecasts_find_it(method: str, make_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked, walked = make_llama(**SMALL), [], []
    real, walk = forecast._Reading.peaks, forecast.Forward.peak

    def peaks(reading: Any, budget: Any, caches: list[Any], only: Any = None) -> list[int]:
        asked.append(only)
        return real(reading, budget, caches, only)

    def peak(forward: Any) -> int:
        walked.append(forward)
        return walk(forward)

    monkeypatch.setattr(forecast._Reading, "peaks", peaks)
    monkeypatch.setattr(forecast.Forward, "peak", peak)
    shape: dict[str, Any] = {"prompt": 1025, "chunk": 128, "tokens": 2, "sequences": 16}
    most, least = (vqx.plan(model, method, budget=budget, **shape).peak for budget in (1027, 64))
    asked.clear()
    walked.clear()
    found = vqx.plan(model, method, memory=(most + least) // 2, **shape)
    assert least < found.peak <= (most + least) // 2 < most
    assert asked.count(None) <= 3, "whole forecasts"
    assert len(walked) <= 32


def test_plans_are_refused_in_words(make_llama: Any, tmp_path: Path) -> None:
    model = make_llama()
    with pytest.raises(ValueError, match="say how many rows to keep"):
        vqx.plan(model, "h2o")
    with pytest.raises(ValueError, match="give one"):
        vqx.plan(model, "h2o", budget=64, memory=10)
    with pytest.raises(ValueError, match="cadence='token' reads a prompt on the host"):
        vqx.plan(model, "h2o", budget=64, cadence="token")
    with pytest.raises(ValueError, match=r"config\.json, such a file, or one of embedded, Llama-3\.2-1B"):
        config_of("Llama-9")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(ValueError, match="no-such-model not supported"):
        vqx.plan(str(tmp_path), "h2o", budget=64)


def test_the_command_says_what_fits() -> None:
    asked = ["plan", "Llama-3.2-1B", "--method", "tova", "--prompt", "600", "--tokens", "2"]
    ran = CliRunner().invoke(cli.main, [*asked, "--budget", "256", "--json"])
    told = json.loads(ran.output)
    assert told["weights"] == 2 * 1_235_814_400
    assert told["budget"] == 256
    assert told["peak"] > told["weights"] + told["cache"]
    ran = CliRunner().invoke(cli.main, [*asked, "--memory", "1GB"])
    assert ran.exit_code == 2
    assert "no budget fits into 1.00 GB" in ran.output
    for room, fits in (("9GB", True), (f"{told['full']['peak'] - 1}B", False)):
        ran = CliRunner().invoke(cli.main, [*asked, "--memory", room])
        assert ("all rows fit" in ran.output) == fits, ran.output
