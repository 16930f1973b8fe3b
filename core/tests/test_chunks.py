"""What a chunk of a prompt asks when it begins, once for all layers: each keeps what it keeps alone."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer, accumulated, kernels
from vqx.observation import observed_attention
from vqx.state import chunks
from vqx.state.turn import Turn

vqx_kernels = pytest.importorskip("vqx_kernels")
testing = pytest.importorskip("vqx_kernels.testing")

LAYERS, BUDGET = 4, 16
SCORERS = {
    "ages": Scorer(score=lambda held: 0.0),
    "the latest query, all heads": Scorer(score=lambda h: h.over_heads(h.last.fused()), window=1),
    "a window, pooled": observed_attention(3, kernel=3, group="max"),
    "mass": accumulated(),
    "two columns": accumulated(per_sighting=True),
}
ALONE = {
    "keys": Scorer(score=lambda held: held.keys.astype(mx.float32).sum(axis=-1)),
    "all weights": Scorer(score=lambda held: held.last.weights().mean(axis=2).mean(axis=2), window=1),
    "norms": Scorer(
        score=lambda held: held.stats["norm"],
        init=lambda new: {"norm": (new.keys.astype(mx.float32) ** 2).sum(axis=-1)},
    ),
}


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The host's loops run; what was settled together is told."""
    found: list[Any] = []
    usual = chunks._settled

    def counted(*given: Any) -> Any:
        found.append(usual(*given))
        return found[-1]

    monkeypatch.setattr(kernels, "target", lambda: "host")
    monkeypatch.setattr(chunks, "_settled", counted)
    return found


def caches(scorer: Scorer, *, together: bool, budgets: Sequence[int] = (BUDGET,) * LAYERS) -> list[Any]:
    methods = {budget: Method(scorer, budget, n_sink=2, recent=3, spans=((6, 8),)) for budget in budgets}
    options, turn = Options(queries="model", interval=6), Turn()
    made = [EvictingCache(methods[b], options, number=number) for number, b in enumerate(budgets)]
    for cache in made if together else ():
        cache.turn = turn
        turn.join(cache)
    return made


def forward(made: Sequence[Any], text: Sequence[Any], length: int, layers: int = LAYERS) -> list[mx.array]:
    mask, given = made[0].make_mask(length), []
    for cache, tokens in zip(made[:layers], text, strict=False):
        now = slice(cache.tokens_seen, cache.tokens_seen + length)
        queries, keys, values = (array[..., now, :] for array in tokens)
        read = cache.update_and_fetch(keys, values)
        cache.observe(queries, read[0], 0.25, mask, None)
        given.append(mx.fast.scaled_dot_product_attention(queries, *read, scale=0.25, mask=mask))
    mx.eval(given, [array for cache in made for array in cache.arrays])
    return given


def held(made: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for cache in made:
        rows = cache.layer.rows
        found += [rows.keys[:, :, : rows.length], rows.values[:, :, : rows.length], rows.position]
        found += [*rows.columns.values(), mx.array([cache.tokens_seen, cache.generated])]
    return [np.array(array.astype(mx.float32)) for array in found]


def drawn(stream: Any) -> list[Any]:
    return [stream(120, seed=number) for number in range(LAYERS)]


def nothing(made: list[Any], text: Any) -> list[Any]:
    return made


def copied(made: list[Any], text: Any) -> list[Any]:
    others = copy.deepcopy(made)
    forward(made, text, 9)
    return others


def broken(made: list[Any], text: Any) -> list[Any]:
    if made[0].turn is not None:
        forward(made, text, 9, layers=2)
        assert made[0].turn.chunks.nbytes
        made[0].turn.undo()
        assert not made[0].turn.chunks.nbytes
    return made


@pytest.mark.parametrize("between", [nothing, copied, broken])
@pytest.mark.parametrize("name", SCORERS)
def test_layers_settle_together_what_each_settles_alone(
    name: str, between: Callable[..., Any], settled: list[Any], stream: Any
) -> None:
    text, found = drawn(stream), []
    for together in (True, False):
        made = caches(SCORERS[name], together=together)
        given = [forward(made, text, length) for length in (20, 17)]
        made = between(made, text)
        given += [forward(made, text, length) for length in (9, 12, 1, 1)]
        found.append([*held(made), *(np.array(mx.array(each)) for each in given)])
        # the cuts before the last three chunks and the first token, one more in between
        assert len(settled) == (4 + (between is not nothing)) * together
        assert None not in settled
        settled.clear()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ALONE)
def test_a_score_that_reads_rows_has_every_layer_settle_alone(
    name: str, settled: list[Any], stream: Any
) -> None:
    text, found = drawn(stream), []
    for together in (True, False):
        made = caches(ALONE[name], together=together)
        for length in (20, 17, 9, 1):
            forward(made, text, length)
        found.append(held(made))
    assert settled == [None], "it was asked again, though no kernel serves it"
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_layers_beside_each_other_that_are_alike_settle_together(
    settled: list[Any], stream: Any
) -> None:
    text, found = drawn(stream), []
    for together in (True, False):
        made = caches(SCORERS["mass"], together=together, budgets=(12, 16, 16, 16))
        for length in (20, 17, 9):
            forward(made, text, length)
        found.append(held(made))
    assert [len(layers) for layers in settled] == [3, 3]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_more_rows_are_settled_at_once_than_may_be_held(
    settled: list[Any], stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, found = drawn(stream), []
    for together in (True, False):
        made = caches(SCORERS["mass"], together=together)
        for length in (20, 17):
            forward(made, text, length)
        settled.clear()
        with monkeypatch.context() as bound:
            bound.setattr(chunks, "TOGETHER", 2 * made[0].as_it_is.rows.nbytes)
            forward(made, text, 9)
        found.append(held(made))
        assert [len(layers) for layers in settled] == [2, 2] * together
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_more_logits_are_held_at_once_than_may_be(
    settled: list[Any], stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, found, asked, usual = drawn(stream), [], [], vqx_kernels.gained

    def gained(target: str, of: Any, rule: Any) -> Any:
        asked.append(len(of.keys) if isinstance(of, vqx_kernels.Layers) else 1)
        return usual(target, of, rule)

    monkeypatch.setattr(vqx_kernels, "gained", gained)
    for most in (chunks.AT_ONCE, 500):
        monkeypatch.setattr(chunks, "AT_ONCE", most)
        made = caches(SCORERS["a window, pooled"], together=True)
        for length in (20, 17):
            forward(made, text, length)
        found.append(held(made))
    assert asked == [4, 2, 2]
    assert len(settled) == 2
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_launch_moves_the_rows_of_all_layers_on_cuda(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated: what stays is what the host's loops say, and no layer asks for a launch of its own."""
    text, found, names = drawn(stream), [], []
    for target, together in (("cuda", True), ("host", False)):
        monkeypatch.setattr(kernels, "target", partial(str, target))
        made = caches(SCORERS["the latest query, all heads"], together=together)
        with testing.recorded() as launches:
            for length in (20, 17, 9):
                forward(made, text, length)
        names.append([launch.outputs[0][0] for _, launch in launches])
        found.append(held(made))
    # positions, scores, what stays, keys and values; and whether new keys are NaN
    assert names[0] == ["nans", *2 * ["gathered", "logits", "ranked", "picked_0", "nans"]]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [*SCORERS, "norms"])
def test_first_rows_start_as_those_of_a_layer_alone(
    name: str, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, found, every = drawn(stream), [], {**SCORERS, **ALONE}
    monkeypatch.setattr(kernels, "target", lambda: "cuda")
    for together in (True, False):
        made = caches(every[name], together=together)
        with testing.recorded():
            forward(made, text, 17)
            assert len({id(cache.as_it_is.rows.position) for cache in made}) == 1
            forward(made, text, 2)
        found.append([*held(made), *(np.array(cache.as_it_is.rows.keys.shape) for cache in made)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_layers_whose_scores_are_held_settle_together_though_their_scorers_differ(
    settled: list[Any], stream: Any
) -> None:
    """As where tensor cores score a prompt's rows: each layer's noise is its own."""

    def noisy(number: int) -> Scorer:
        def init(new: Any) -> Any:
            place = mx.arange(new.start, new.start + new.length)
            noise = mx.broadcast_to(mx.sin(place * (number + 2.0)), (new.batch, new.heads, new.length))
            return {"noise": noise}

        return Scorer(score=lambda held: held.stats["noise"], init=init)

    text, found = drawn(stream), []
    for together in (True, False):
        made = caches(SCORERS["ages"], together=together)
        for number, cache in enumerate(made):
            cache.plan = cache.plan._replace(method=cache.plan.method._replace(scorer=noisy(number)))
        for length in (20, 17, 9):
            forward(made, text, length)
            for cache in made:
                noise = cache.layer.rows.columns["noise"]
                cache.layer = cache.layer._replace(score=noise * 2.0)
        found.append([*held(made), *(np.array(cache.layer.score) for cache in made)])
    assert [len(layers) for layers in settled] == [4, 4]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
