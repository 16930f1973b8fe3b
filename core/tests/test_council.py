"""One launch for the next token of all layers: each keeps what it keeps alone, whatever comes between."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer, accumulated, kernels
from vqx.state import constants, council, cuts, run
from vqx.state.positions import rotary_of
from vqx.state.turn import Turn
from vqx.testing.scorers import noisy
from vqx_kernels import probe, verify

vqx_kernels = pytest.importorskip("vqx_kernels")
testing = pytest.importorskip("vqx_kernels.testing")

LAYERS, WIDTH = 3, 8
LATEST = Scorer(score=lambda held: held.over_heads(held.last.fused()), window=1)
WINDOW = Scorer(score=lambda held: held.last.fused(), window=4)
SCORERS: dict[str, Any] = {
    "noise of a layer's own": noisy,
    "lines of its own": accumulated().with_kernel(probe.MASS, lambda *_: (1.0,)),
    "the latest query": LATEST,
    "a layer's own lines": LATEST.with_kernel(verify.LAST, lambda *_: (), layer=True),
    "the greatest of a group": Scorer(score=lambda held: held.last.fused(group="max"), window=1),
    "a window": WINDOW,
    "a window's own lines": WINDOW.with_kernel(vqx_kernels.Method("w", "score = gained;"), lambda *_: ()),
    "ages alone": Scorer(score=lambda held: 0.0, window=0),
}
ALONE = {
    "keys": Scorer(score=lambda held: held.keys.astype(mx.float32).sum(axis=-1)),
    "operations and statistics": accumulated(per_sighting=True),
    "all weights": Scorer(score=lambda held: held.last.weights().mean(axis=2).mean(axis=2), window=1),
}


@pytest.fixture(autouse=True)
def loops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The host's loops run; what was decided together is told."""
    found: list[Any] = []

    def counted(usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            chosen = usual(*given)
            found.append(chosen)
            return chosen

        return call

    monkeypatch.setattr(kernels, "target", lambda: "host")
    monkeypatch.setattr(constants, "AHEAD", 8)
    for name in ("together", "kept_together"):
        monkeypatch.setattr(kernels, name, counted(getattr(kernels, name)))
    return found


def caches(
    scorer: Any, *, together: bool, interval: int = 1, budget: int = 16, positions: Any = "absolute"
) -> list[EvictingCache]:
    each, turn = [scorer if isinstance(scorer, Scorer) else scorer(n) for n in range(LAYERS)], Turn()
    methods = [Method(own, budget, n_sink=2, recent=3) for own in each]
    methods = methods if each[0] is not each[1] else methods[:1] * LAYERS
    options = Options(queries="model", interval=interval, positions=positions)
    rotary = rotary_of(nn.RoPE(WIDTH), WIDTH) if positions == "compact" else None
    made = [EvictingCache(method, options, rotary=rotary, number=n) for n, method in enumerate(methods)]
    for cache in made if together else ():
        cache.turn = turn
        turn.join(cache)
    return made


def forward(
    made: Sequence[EvictingCache], text: Sequence[Any], length: int, layers: int = LAYERS
) -> list[mx.array]:
    """One forward of a model that ends after so many layers; what attention gives."""
    mask, found, given = made[0].make_mask(length), [], []
    for cache, tokens in zip(made[:layers], text, strict=False):
        now = slice(cache.tokens_seen, cache.tokens_seen + length)
        queries, keys, values = (array[..., now, :] for array in tokens)
        read = cache.update_and_fetch(keys, values)
        if not cache.goes_on(queries, read[0], 0.25, None):  # as the attention hook asks
            cache.observe(queries, read[0], 0.25, mask, None)
        given.append(mx.fast.scaled_dot_product_attention(queries, *read, scale=0.25, mask=mask))
        found += [queries, *read, *cache.loose()]  # as attention reads them
    mx.eval(found, given)
    return given


def nothing(made: list[EvictingCache], text: Any) -> list[EvictingCache]:
    return made


def one_looked_at(made: list[EvictingCache], text: Any) -> list[EvictingCache]:
    mx.eval(made[1].position)
    return made


def copied(made: list[EvictingCache], text: Any) -> list[EvictingCache]:
    others = copy.deepcopy(made)
    forward(made, text, 1)  # what those that were copied go on with is none of the copies'
    return others


def a_chunk(made: list[EvictingCache], text: Any) -> list[EvictingCache]:
    forward(made, text, 5)
    return made


def broken(made: list[EvictingCache], text: Any) -> list[EvictingCache]:
    if made[0].turn is not None:
        forward(made, text, 1, layers=2)
    return made


def held(made: Sequence[EvictingCache]) -> list[Any]:
    found = []
    for cache in made:
        layer = cache.layer
        assert layer is not None
        order = np.argsort(np.array(layer.rows.position), axis=2)
        rows = [np.array(array[:, :, : layer.size]) for array in (layer.rows.keys, layer.rows.values)]
        found += [np.take_along_axis(array, order[..., None], 2) for array in rows]
        columns = layer.rows.position, *layer.rows.columns.values()
        found += [np.take_along_axis(np.array(column), order, 2) for column in columns]
        found.append((layer.tokens_seen, layer.generated))
    return found


def kept_alike(
    name: str, between: Callable[..., Any], loops: list[Any], stream: Any, least: int, **engine: Any
) -> None:
    """Layers that decide together, in ``least`` launches or more, hold what each of them holds alone."""
    text, found = [stream(70, seed=number) for number in range(LAYERS)], []
    for together in (True, False):
        made = caches(SCORERS[name], together=together, **engine)
        for length in (20, *[1] * 20):
            forward(made, text, length)
        made = between(made, text)
        for _ in range(12):
            forward(made, text, 1)
        found.append(held(made))
        assert (len(loops) >= least) == together, "they did not decide together"
        assert None not in loops
        loops.clear()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("interval", [1, 6])
@pytest.mark.parametrize("between", [nothing, one_looked_at, copied, a_chunk, broken])
@pytest.mark.parametrize("name", SCORERS)
def test_layers_keep_together_what_each_keeps_alone(
    name: str, between: Callable[..., Any], interval: int, loops: list[Any], stream: Any
) -> None:
    kept_alike(name, between, loops, stream, 25 if interval == 1 else 3, interval=interval)


@pytest.mark.parametrize("interval", [1, 6])
@pytest.mark.parametrize("between", [nothing, one_looked_at, copied, a_chunk, broken])
@pytest.mark.parametrize("name", SCORERS)
def test_in_compact_positions_layers_keep_together_what_each_keeps_by_operations(
    name: str,
    between: Callable[..., Any],
    interval: int,
    loops: list[Any],
    stream: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, found, given = [stream(70, seed=number) for number in range(LAYERS)], [], []
    for together in (True, False):
        monkeypatch.setattr(kernels, "target", partial(str, "host" if together else "reference"))
        made = caches(SCORERS[name], together=together, interval=interval, positions="compact")
        for length in (20, *[1] * 20):
            forward(made, text, length)
        made = between(made, text)
        assert made[0].offset == made[0].tokens_kept < made[0].tokens_seen
        given.append([forward(made, text, 1) for _ in range(12)])
        found.append(held(made))
        least = 25 if interval == 1 else 3
        assert (len(loops) >= least) == together, "they did not decide together"
        assert None not in loops
        loops.clear()
    for one, other in zip(*found, strict=True):  # sums of weights are rounded otherwise
        np.testing.assert_allclose(one, other, rtol=1e-6)
    # another order of the same rows
    np.testing.assert_allclose(*(np.array(mx.array(outputs)) for outputs in given), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("positions", ["absolute", "compact"])
@pytest.mark.parametrize("between", [nothing, one_looked_at, copied, a_chunk, broken])
@pytest.mark.parametrize("name", ["a window", "a window's own lines"])
def test_a_window_reaches_back_over_cuts_that_come_more_often(
    name: str, between: Callable[..., Any], positions: str, loops: list[Any], stream: Any
) -> None:
    kept_alike(name, between, loops, stream, 8, interval=3, positions=positions)


@pytest.mark.parametrize("positions", ["absolute", "compact"])
@pytest.mark.parametrize("interval", [1, 6])
@pytest.mark.parametrize("name", SCORERS)
def test_wherever_forwards_end_nothing_of_them_stays(
    name: str, interval: int, positions: str, loops: list[Any], stream: Any
) -> None:
    """Before each token another is read by a layer or two, of which the latest has no attention yet."""
    text, others = ([stream(70, seed=first + number) for number in range(LAYERS)] for first in (0, LAYERS))
    found: list[list[Any]] = []
    given = []
    for ends in (True, False):
        found.append([])
        made = caches(SCORERS[name], together=True, interval=interval, positions=positions)
        for number, length in enumerate((20, *[1] * 30)):
            if ends and number:
                whole = number % (LAYERS - 1)
                forward(made, others, 1, layers=whole)
                _, keys, values = others[whole]
                mx.eval(made[whole].update_and_fetch(keys[..., :1, :], values[..., :1, :]))
                if number % 2:
                    mx.eval(made[0].position)
            made[0].make_mask(length)  # which begins another
            found[-1] += [cache.offset for cache in made]
            if number % 7 == 6:
                found[-1] += held(made)
            given.append(forward(made, text, length))
        found[-1] += held(made)
        assert len(loops) >= (12 if interval == 1 else 3)
        loops.clear()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    half = len(given) // 2
    for one, other in zip(given[:half], given[half:], strict=True):
        np.testing.assert_array_equal(np.array(mx.array(one)), np.array(mx.array(other)))


def test_the_mean_over_heads_is_taken_where_the_row_is_chosen(
    loops: list[Any], stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, usual = [], vqx_kernels.exchanged

    def exchanged(*given: Any, **more: Any) -> Any:
        asked.append(more.get("method"))
        return usual(*given, **more)

    monkeypatch.setattr(vqx_kernels, "exchanged", exchanged)
    text = [stream(70, seed=number) for number in range(LAYERS)]
    made = caches(SCORERS["a layer's own lines"], together=True)
    for length in (20, *[1] * 8):
        forward(made, text, length)
    assert loops
    assert asked[-len(loops) :] == [verify.LAST] * len(loops)


def test_one_launch_turns_the_keys_of_all_layers_as_one_for_each_does(
    loops: list[Any], stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, found, given, asked = [stream(70, seed=number) for number in range(LAYERS)], [], [], []
    for name in ("turned", "turned_together"):
        usual = getattr(kernels, name)
        counted = lambda *of, usual=usual, name=name, **how: asked.append(name) or usual(*of, **how)  # noqa: E731
        monkeypatch.setattr(kernels, name, counted)
    for together in (True, False):
        if not together:
            monkeypatch.setattr(kernels, "turned_together", lambda *_: None)
        made = caches(SCORERS["lines of its own"], together=True, positions="compact")
        given.append([forward(made, text, length) for length in (20, *[1] * 30)])
        found.append(held(made))
        each, at_once = asked.count("turned"), asked.count("turned_together")
        assert (each <= 2 * LAYERS and at_once >= 25) if together else each >= 25 * LAYERS
        asked.clear()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(*given, strict=True):
        np.testing.assert_array_equal(np.array(mx.array(one)), np.array(mx.array(other)))


@pytest.mark.parametrize("target", ["host", "reference"])
def test_turned_keys_held_between_two_cuts_are_those_that_a_token_turns(
    target: str, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, found, given = [stream(70, seed=number) for number in range(LAYERS)], [], []
    monkeypatch.setattr(kernels, "target", lambda: target)
    for most in (run.TURNED, 0):
        monkeypatch.setattr(run, "TURNED", most)
        made = caches(SCORERS["lines of its own"], together=True, interval=6, positions="compact")
        shapes = []
        for length in (20, *[1] * 40):
            given.append(forward(made, text, length))
            under_way = made[0]._run
            shapes.append(isinstance(under_way, run.Run) and under_way.turns)
        assert (sum(shapes) > 20) == bool(most)
        found.append(held(made))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(given[: len(given) // 2], given[len(given) // 2 :], strict=True):
        np.testing.assert_array_equal(np.array(mx.array(one)), np.array(mx.array(other)))


def test_keys_turned_to_compact_positions_are_held_for_all_layers_up_to_a_bound(
    loops: list[Any], stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(council, "TURNED", 100)
    text = [stream(70, seed=number) for number in range(LAYERS)]
    made = caches(SCORERS["lines of its own"], together=True, positions="compact")
    for length in (20, *[1] * 20):
        forward(made, text, length)
    assert not loops
    assert [cache.tokens_kept for cache in made] == [16] * LAYERS


@pytest.mark.parametrize("interval", [1, 6])
@pytest.mark.parametrize("name", ALONE)
def test_a_score_that_asks_for_more_has_every_layer_decide_alone(
    name: str, interval: int, loops: list[Any], stream: Any
) -> None:
    text = [stream(70, seed=number) for number in range(LAYERS)]
    found = []
    for together in (True, False):
        made = caches(ALONE[name], together=together, interval=interval)
        for length in (20, *[1] * 20):
            forward(made, text, length)
        found.append(held(made))
    assert len(loops) <= 1
    assert not any(loops)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("most", "layers"), [(2000, {3}), (1000, {2}), (500, set())])
def test_a_cut_holds_no_more_logits_than_it_may(
    most: int, layers: set[int], loops: list[Any], stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer's are 4 heads times 6 queries times 22 rows, 528; so many layers go to one launch."""
    monkeypatch.setattr(cuts, "AT_ONCE", most)
    text, found = [stream(70, seed=number) for number in range(LAYERS)], []
    for together in (True, False):
        made = caches(SCORERS["lines of its own"], together=together, interval=6)
        for length in (20, *[1] * 25):
            forward(made, text, length)
        found.append(held(made))
    assert {kept.slots.shape[0] for kept in loops} == layers
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_tensor_cores_sum_up_what_a_cut_asks_and_no_logits_are_written(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA, emulated: all layers go to two launches, and nothing as large as a layer's logits is there."""
    text, found, names = [], [], []
    for number in range(LAYERS):
        tokens = stream(70, seed=number)
        text.append([mx.concatenate([one, one], axis=-1).astype(mx.float16) for one in tokens])
    monkeypatch.setattr(vqx_kernels.tensor, "_tried", lambda _: (True, ""))
    monkeypatch.setattr(cuts, "AT_ONCE", 500)
    for target, together in (("cuda", True), ("cuda", False), ("reference", False)):
        monkeypatch.setattr(kernels, "target", partial(str, target))
        made = caches(accumulated(per_sighting=True), together=together, interval=6)
        with testing.recorded() as launches:
            for length in (20, *[1] * 20):
                forward(made, text, length)
            found.append(held(made))
        names += [[launch.outputs[0][0] for _, launch in launches]]
    # a prompt and what waits in the end, layer by layer; three cuts
    assert [each.count("bars") for each in names] == [2 * LAYERS + 3, 5 * LAYERS, 0]
    assert "logits" not in (*names[0], *names[1])
    for one, other, reference in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, reference, rtol=1e-4)


def test_layers_of_different_budgets_decide_alone(loops: list[Any], stream: Any) -> None:
    text = [stream(70, seed=number) for number in range(LAYERS)]
    scorer, turn = SCORERS["lines of its own"], Turn()
    budgets = (16, 12, 14)
    made = [
        EvictingCache(Method(scorer, budget, n_sink=2), Options(queries="model"), number=number)
        for number, budget in enumerate(budgets)
    ]
    for cache in made:
        cache.turn = turn
        turn.join(cache)
    for length in (20, *[1] * 20):
        forward(made, text, length)
    assert not loops
    assert [cache.tokens_kept for cache in made] == [*budgets]


@pytest.mark.parametrize("interval", [1, 6])
def test_where_a_layer_never_comes_the_others_decide_in_the_forward_before(
    interval: int, loops: list[Any], stream: Any
) -> None:
    text = [stream(70, seed=number) for number in range(LAYERS)]
    made = caches(SCORERS["lines of its own"], together=True, interval=interval)
    for length in (20, *[1] * 30):
        forward(made, text, length, layers=2)
        for cache in made[:2]:
            assert cache.turn is not None
            cache.turn._before.clear()  # as if the forward had ended
    assert not loops
    layer = made[0].as_it_is
    assert layer is not None
    assert (layer.ahead is not None) == made[0].plan.due(layer)
    assert made[0].tokens_kept <= 16 + interval - 1


@pytest.mark.parametrize("interval", [1, 6])
@pytest.mark.parametrize("name", SCORERS)
def test_every_token_may_come_in_another_thread(
    name: str, interval: int, loops: list[Any], stream: Any
) -> None:
    text, found = [stream(70, seed=number) for number in range(LAYERS)], []
    mx.eval([tokens[:3] for tokens in text])
    for threads in (True, False):
        made = caches(SCORERS[name], together=True, interval=interval)
        for length in (20, *[1] * 20):
            if threads:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(forward, made, text, length).result()
            else:
                forward(made, text, length)
        found.append(held(made))
    assert None not in loops
    assert len(loops) >= 6
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_token_is_written_in_place(stream: Any) -> None:
    made = caches(SCORERS["lines of its own"], together=True, budget=2048)
    shape = (1, 2, 2100, 64)
    text = [mx.random.normal((3, *shape), key=mx.random.key(number)) for number in range(LAYERS)]
    for length in (2050, *[1] * 5):
        forward(made, text, length)
    buffer = 2 * 2048 * 64 * 4
    for _ in range(20):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        forward(made, text, 1)
        assert mx.get_peak_memory() - before < buffer / 2
