"""Sequences of different lengths decode in one batch: each keeps in every layer what it keeps alone."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer, accumulated, kernels
from vqx.state import constants
from vqx.state.batch import EvictingBatch
from vqx.state.run import Run
from vqx.state.turn import Turn
from vqx.testing.scorers import noisy
from vqx_kernels import probe, verify

vqx_kernels = pytest.importorskip("vqx_kernels")

LAYERS, BUDGET, FACTOR = 3, 16, 0.25
LATEST = Scorer(score=lambda held: held.over_heads(held.last.fused()), window=1)
AGES = Scorer(score=lambda held: 0.0, window=0)
LATER = "numbers that agree later"
SCORERS: dict[str, Any] = {
    "noise of a layer's own": noisy,
    "lines of its own": accumulated().with_kernel(probe.MASS, lambda *_: (1.0,)),
    "the latest query": LATEST,
    "a layer's own lines": LATEST.with_kernel(verify.LAST, lambda *_: (), layer=True),
    "ages alone": AGES,
    "a window": Scorer(score=lambda held: held.last.fused(), window=4),
    "operations and statistics": accumulated(per_sighting=True),
    "numbers that differ": accumulated().with_kernel(probe.MASS, lambda newest, *_: (1.0, float(newest))),
    LATER: accumulated().with_kernel(probe.MASS, lambda newest, *_: (1.0, float(min(newest, 30)))),
}
TOGETHER = (
    "noise of a layer's own", "lines of its own", "the latest query", "a layer's own lines", "ages alone",
    "a window",
)  # fmt: skip


class Texts:
    """What B sequences hand to each of the layers, and how many tokens of each were read."""

    def __init__(self, stream: Callable[..., Any], prompts: Sequence[int]) -> None:
        self.text = [
            [stream(90, seed=sequence * LAYERS + layer) for layer in range(LAYERS)]
            for sequence in range(len(prompts))
        ]
        self.read = [0] * len(prompts)
        self.scorer: Any = None  # of the caches that read them

    def next(self, sequence: int, layer: int, length: int) -> list[mx.array]:
        start = self.read[sequence]
        return [array[..., start : start + length, :] for array in self.text[sequence][layer]]


def listed(scorer: Any, interval: int) -> list[EvictingCache]:
    """Caches of one list, a layer each."""
    turn = Turn()
    each = [scorer if isinstance(scorer, Scorer) else scorer(number) for number in range(LAYERS)]
    made = [
        EvictingCache(
            Method(own, BUDGET, n_sink=2, recent=3), Options(queries="model", interval=interval), number=i
        )
        for i, own in enumerate(each)
    ]
    for cache in made:
        cache.turn = turn
        turn.join(cache)
    return made


def forward(
    made: Sequence[Any], texts: Texts, members: Sequence[int], length: int = 1, layers: int = LAYERS
) -> list[mx.array]:
    """One forward of these sequences that ends after so many layers; what attention gives."""
    mask, given, found = made[0].make_mask(length), [], []
    for layer, cache in enumerate(made[:layers]):
        each = zip(*(texts.next(member, layer, length) for member in members), strict=True)
        queries, keys, values = (mx.concatenate([*arrays]) for arrays in each)
        _ = cache.offset
        read = cache.update_and_fetch(keys, values)
        if not cache.goes_on(queries, read[0], FACTOR, None, None if length > 1 else mask):
            cache.observe(queries, read[0], FACTOR, mask, None)
        given.append(mx.fast.scaled_dot_product_attention(queries, *read, scale=FACTOR, mask=mask))
        found += [queries, *read, *cache.loose()]
    mx.eval(found, given)
    if layers == LAYERS:
        for member in members:
            texts.read[member] += length
    return given


def joined(scorer: Any, texts: Texts, prompts: Sequence[int], interval: int) -> list[EvictingBatch]:
    """A batch of sequences that each read a prompt; of each layer."""
    each, texts.scorer = [], scorer
    for member, prompt in enumerate(prompts):
        if prompt:
            each.append(listed(scorer, interval))
            forward(each[-1], texts, [member], prompt)
    return [EvictingBatch(layers) for layers in zip(*each, strict=True)]


def held(cache: Any) -> list[Any]:
    """What a cache of one sequence holds, by age."""
    layer = cache.layer
    order = np.argsort(np.array(layer.rows.position), axis=2)
    rows = [np.array(array[:, :, : layer.size]) for array in (layer.rows.keys, layer.rows.values)]
    found = [np.take_along_axis(array, order[..., None], 2) for array in rows]
    columns = layer.rows.position, *layer.rows.columns.values()
    found += [np.take_along_axis(np.array(column), order, 2) for column in columns]
    return [*found, np.array([layer.tokens_seen, layer.generated])]


def nothing(made: list[Any], texts: Texts, members: list[int]) -> list[Any]:
    return made


def one_looked_at(made: list[Any], texts: Texts, members: list[int]) -> list[Any]:
    mx.eval(made[1].state)
    return made


def copied(made: list[Any], texts: Texts, members: list[int]) -> list[Any]:
    others, read = copy.deepcopy(made), [*texts.read]
    forward(made, texts, members)  # what those that were copied go on with is none of the copies'
    texts.read = read
    return others


def broken(made: list[Any], texts: Texts, members: list[int]) -> list[Any]:
    read = [*texts.read]
    texts.read = [at + 7 for at in read]  # other tokens, of which nothing may stay
    forward(made, texts, members, layers=2)
    texts.read = read
    return made


def one_left(made: list[Any], texts: Texts, members: list[int]) -> list[Any]:
    for batch in made:
        batch.filter([0, 2])
    del members[1]
    return made


def one_came(made: list[Any], texts: Texts, members: list[int], prompt: int = 29) -> list[Any]:
    late = listed(texts.scorer, made[0].plan.options.interval)
    forward(late, texts, [3], prompt)
    for batch, one in zip(made, late, strict=True):
        batch.extend(EvictingBatch([one]))
    members.append(3)
    return made


def a_short_one_came(made: list[Any], texts: Texts, members: list[int]) -> list[Any]:
    """It evicts nothing yet, and has padding behind its rows."""
    return one_came(made, texts, members, 7)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The host's loops run; what was decided for all layers is told."""
    found: list[Any] = []

    def counted(usual: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: found.append(usual(*given)) or found[-1]

    monkeypatch.setattr(kernels, "target", lambda: "host")
    monkeypatch.setattr(constants, "AHEAD", 8)
    monkeypatch.setattr(constants, "SOON", 4)
    for name in ("together", "seen_together"):
        monkeypatch.setattr(kernels, name, counted(getattr(kernels, name)))
    return found


@pytest.mark.parametrize(
    "between", [nothing, one_looked_at, copied, broken, one_left, one_came, a_short_one_came]
)
@pytest.mark.parametrize(("name", "interval"), [*product(SCORERS, (1, 6)), ("a window", 3)])
def test_in_a_batch_every_layer_keeps_of_a_sequence_what_it_keeps_alone(
    name: str, interval: int, between: Callable[..., Any], decided: list[Any], stream: Any
) -> None:
    prompts, scorer = (20, 27, 23), SCORERS[name]
    late = 7 if between is a_short_one_came else 29
    texts, members, runs = Texts(stream, (*prompts, late)), [0, 1, 2], 0
    made = joined(scorer, texts, prompts, interval)
    for number in range(24):
        forward(made, texts, members)
        if number == 11:
            made = between(made, texts, members)
        runs += all(isinstance(batch._run, Run) for batch in made)
    if interval == 1:
        least = {LATER: 6 if late > 7 else 2}.get(name, 18 if name in TOGETHER else 0)
        assert sum(chosen is not None for chosen in decided) >= least
        assert least or not any(decided)
    else:
        assert runs >= 6, "no token went on from the one before"
        assert any(decided) == (name in (*TOGETHER, LATER)), "cuts of all layers are one"
    for place, member in enumerate(members):
        alone = Texts(stream, (*prompts, late))
        one = listed(scorer, interval)
        for cache in one:
            cache.turn = None
        prompt = (*prompts, late)[member]
        forward(one, alone, [member], prompt)
        for _ in range(texts.read[member] - prompt):
            forward(one, alone, [member])
        for batch, cache in zip(made, one, strict=True):
            for in_batch, by_itself in zip(held(batch.extract(place)), held(cache), strict=True):
                if interval == 1 and name in TOGETHER and between is not a_short_one_came:
                    np.testing.assert_array_equal(in_batch, by_itself)
                else:  # sums of weights are rounded otherwise
                    np.testing.assert_allclose(in_batch, by_itself, rtol=2e-6)


@pytest.mark.parametrize("interval", [1, 6])
@pytest.mark.parametrize("name", TOGETHER)
def test_every_token_of_a_batch_may_come_in_another_thread(
    name: str, interval: int, decided: list[Any], stream: Any
) -> None:
    found = []
    for threads in (True, False):
        texts = Texts(stream, (20, 27, 23))
        made = joined(SCORERS[name], texts, (20, 27, 23), interval)
        mx.eval([batch.state for batch in made], [[layer[:3] for layer in one] for one in texts.text])
        for _ in range(20):
            if threads:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(forward, made, texts, [0, 1, 2]).result()
            else:
                forward(made, texts, [0, 1, 2])
        found.append([held(batch.extract(place)) for batch in made for place in range(3)])
    for one, other in zip(*found, strict=True):
        for each, same in zip(one, other, strict=True):
            np.testing.assert_array_equal(each, same)


def test_sequences_are_told_apart_while_tokens_are_only_written_down(stream: Any) -> None:
    """Without kernels, too; what is asked from outside is as it is once all is put down."""
    texts = Texts(stream, (20, 27, 23))
    made, members = joined(SCORERS["the latest query"], texts, (20, 27, 23), 6), [0, 1, 2]
    told = []
    for _ in range(12):
        forward(made, texts, members)
        batch = made[1]
        told.append(isinstance(batch._run, Run))
        before = batch.tokens_seen, batch.tokens_kept, batch.offset
        assert batch.tokens_seen == (*texts.read,)
        mx.eval(batch.state)
        assert batch._run is None
        assert (batch.tokens_seen, batch.tokens_kept) == before[:2]
        np.testing.assert_array_equal(np.array(batch.offset), np.array(before[2]))
    assert any(told)


@pytest.mark.parametrize("interval", [1, 6])
def test_a_token_of_a_batch_is_written_in_place(interval: int, decided: list[Any]) -> None:
    """A cut, too, copies no buffer, at whatever token it comes for a sequence."""
    budget, layers, width = 256, 2, 512
    text = mx.random.normal((layers, 3, 4, 2, 400, width), key=mx.random.key(0))
    method, singles = Method(SCORERS["lines of its own"], budget, recent=3), []

    def read(caches: Sequence[Any], own: slice, first: int, last: int) -> None:
        mask, found = caches[0].make_mask(last - first), []
        for cache, tokens in zip(caches, text, strict=True):
            queries, keys, values = tokens[:, own, :, first:last]
            held = cache.update_and_fetch(keys, values)
            if not cache.goes_on(queries, held[0], FACTOR, None, mask if last - first == 1 else None):
                cache.observe(queries, held[0], FACTOR, mask, None)
            found += [mx.fast.scaled_dot_product_attention(queries, *held, scale=FACTOR, mask=mask)]
            found += cache.loose()
        mx.eval(found)

    for member in range(4):
        turn = Turn()
        engine = Options(queries="model", interval=interval)
        each = [EvictingCache(method, engine, number=number) for number in range(layers)]
        for cache in each:
            cache.turn = turn
            turn.join(cache)
        read(each, slice(member, member + 1), 0, 290)
        for number in range(member):
            read(each, slice(member, member + 1), 290 + number, 291 + number)
        singles.append(each)
    batches = [EvictingBatch(each) for each in zip(*singles, strict=True)]
    del singles, each, cache
    for number in range(15):
        read(batches, slice(0, 4), 300 + number, 301 + number)
    decided.clear()
    buffer = 4 * 2 * budget * width * 4
    for number in range(15, 35):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        read(batches, slice(0, 4), 300 + number, 301 + number)
        assert mx.get_peak_memory() - before < buffer / 2
    assert len(decided) >= 12
    assert None not in decided
