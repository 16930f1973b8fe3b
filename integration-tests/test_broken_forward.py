"""A forward that ends in the middle leaves every layer as it was before, or the next one is refused."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from subjects import caches_of, method
from tiny_models.build import tiny_model
from vqx.state import turn
from vqx.state.turn import EARLY


class Broken(Exception):
    pass


def breaking(model: Any, layer: int, caches: list[Any], tokens: mx.array) -> None:
    """A forward that ends with an error after the attention of this layer."""
    part = model.layers[layer]
    whole = part.mlp
    part.mlp = lambda hidden: raised()
    try:
        with pytest.raises(Broken):
            model(tokens, cache=caches)
    finally:
        part.mlp = whole


def raised() -> Any:
    raise Broken


@contextmanager
def begun_early() -> Iterator[None]:
    """As on a GPU: a prompt begins before its last layer is written down, here at every one."""
    before, every = EARLY.set(2**27), turn.EVERY
    turn.EVERY = 1
    try:
        yield
    finally:
        EARLY.reset(before)
        turn.EVERY = every


@pytest.mark.parametrize("engine", [{}, {"undo": 3}, {"cadence": "token"}, {"interval": 4}], ids=str)
@method
def test_a_forward_that_ended_in_the_middle_leaves_no_trace(method: str, engine: Any, tiny: Any) -> None:
    try:
        caches = caches_of(tiny.model, method, budget=24, **engine)
    except ValueError:
        assert engine, "every method runs at its defaults"
        return
    tokens = mx.random.randint(0, 97, (1, 100), key=mx.random.key(1))
    lengths = [30, 16, *[1] * 8, 20, *[1] * 4]
    unbroken = copy.deepcopy(caches)
    right = tiny.read(unbroken, tokens[:, : sum(lengths)], lengths)
    found, at = [], 0
    for number, length in enumerate(lengths):
        part = tokens[:, at : at + length]
        with begun_early():
            breaking(tiny.model, number % 2, caches, tokens[:, 59:] if number % 3 else part)
            found.append(tiny.read(caches, part, [length]))
        at += length
    assert mx.array_equal(mx.concatenate(found, axis=1), right).item()
    assert [cache.tokens_seen for cache in caches] == [cache.tokens_seen for cache in unbroken]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("room", [-1, 0, 2**27])
def test_a_prompt_begins_while_old_rows_leave_room(
    room: int, every: int, tiny: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(turn, "EVERY", every)
    begun: list[int] = []
    # other arrays that are evaluated are those made once for all layers, of three axes
    monkeypatch.setattr(mx, "async_eval", lambda one: begun.extend([one.shape[2]] * (one.ndim == 4)))
    starts, tokens = (len(tiny.model.layers) - 1) // every, mx.zeros((1, 40), mx.int32)
    caches = caches_of(tiny.model, "h2o", budget=24)
    before = EARLY.set(room)
    try:
        for length in (40, 20, 1, 2):
            mx.eval(tiny.model(tokens[:, :length], cache=caches), [cache.state for cache in caches])
    finally:
        EARLY.reset(before)
    # of the first chunk no rows are held before; of the second, one layer's are too many for no room
    assert begun == {-1: [], 0: [40] * starts, 2**27: [40] * starts + [20] * starts}[room]


def test_nan_in_a_last_layer_is_refused_before_a_first_one_reads(tiny: Any) -> None:
    caches, last = caches_of(tiny.model, "h2o", budget=24), len(tiny.model.layers) - 1
    tokens, attention = mx.zeros((1, 40), mx.int32), tiny.model.layers[last].self_attn
    right = attention.k_proj.weight
    attention.k_proj.weight = right * mx.nan
    mx.eval(tiny.model(tokens, cache=caches), [cache.state for cache in caches])
    attention.k_proj.weight = right
    for _ in range(2):
        with pytest.raises(ValueError, match=f"layer {last}: keys of the last 40 tokens hold NaN"):
            tiny.model(tokens, cache=caches)
        assert {cache.tokens_seen for cache in caches} == {40}


def test_layers_of_other_kinds_cannot_go_back_and_say_so() -> None:
    model = tiny_model("gemma3_text")
    caches = vqx.make_cache(model, "h2o", budget=16)
    evicting = [number for number, cache in enumerate(caches) if isinstance(cache, vqx.EvictingCache)]
    tokens = mx.random.randint(0, 60, (1, 20), key=mx.random.key(1))
    model(tokens, cache=caches)
    assert evicting[-1] < len(caches) - 1 or len(evicting) > 1
    breaking(model, evicting[0], caches, tokens[:, :1])
    with pytest.raises(ValueError, match="layers of other kinds cannot go back: start from fresh caches"):
        model(tokens[:, :1], cache=caches)


def split_batch(model: Any, method: str, lengths: list[int]) -> list[Any]:
    """Caches of one batch, a sequence for each length, each with a history of its own."""
    lists = []
    for number, length in enumerate(lengths):
        caches = caches_of(model, method, budget=24)
        if length:
            tokens = mx.random.randint(0, 97, (1, length), key=mx.random.key(number))
            mx.eval(model(tokens, cache=caches))
        lists.append(caches)
    return [layer[0].merge([*layer]) for layer in zip(*lists, strict=True)]


@pytest.mark.parametrize("lengths", [[0, 0, 0], [40, 3, 0]], ids=["alike", "apart"])
@method
def test_a_batch_goes_back_as_a_whole(method: str, lengths: list[int], tiny: Any) -> None:
    batches = [split_batch(tiny.model, method, lengths) for _ in range(2)]
    tokens = mx.random.randint(0, 97, (3, 60), key=mx.random.key(1))
    other = tokens[:, 59:]
    for at, length in ((0, 30), (30, 1), (31, 1), (32, 5), (37, 1)):
        part = tokens[:, at : at + length]
        breaking(tiny.model, at % 2, batches[0], other if at else part)
        found, right = (tiny.model(part, cache=batch) for batch in batches)
        assert mx.array_equal(found, right).item()
    breaking(tiny.model, 1, batches[0], other)
    for batch in batches:
        for cache in batch:
            cache.filter([2, 0])
    breaking(tiny.model, 0, batches[0], other[:2])
    broken, whole = ([cache.extract(1) for cache in batch] for batch in batches)
    breaking(tiny.model, 1, broken, other[:1])
    found, right = (tiny.read(each, tokens[:1], [1] * 20) for each in (broken, whole))
    assert mx.array_equal(found, right).item()
    counts = [cache.tokens_seen for cache in whole]
    assert [cache.tokens_seen for cache in broken] == counts == [lengths[0] + 58] * len(counts)
    assert any(cache.tokens_kept < cache.tokens_seen for cache in whole)
    found, right = (tiny.model(other[:2], cache=batch) for batch in batches)
    assert mx.array_equal(found, right).item()


@pytest.mark.parametrize("engine", [{}, {"undo": 3}], ids=str)
def test_a_copy_of_a_broken_list_goes_back_apart(engine: Any, tiny: Any) -> None:
    caches = caches_of(tiny.model, "h2o", budget=24, **engine)
    tokens = mx.random.randint(0, 97, (1, 40), key=mx.random.key(1))
    mx.eval(tiny.model(tokens, cache=caches))
    breaking(tiny.model, 1, caches, tokens[:, :1])
    copied = copy.deepcopy(caches)
    found = [tiny.read(each, tokens, [1] * 9) for each in (copied, caches)]
    assert mx.array_equal(*found).item()
    assert {cache.tokens_seen for cache in (*copied, *caches)} == {49}
    assert {id(cache.turn) for cache in copied}.isdisjoint({id(cache.turn) for cache in caches})


def test_a_batch_with_layers_of_other_kinds_cannot_go_back_and_says_so() -> None:
    model = tiny_model("gemma3_text")
    lists = [vqx.make_cache(model, "h2o", budget=16) for _ in range(2)]
    tokens = mx.random.randint(0, 60, (2, 20), key=mx.random.key(1))
    for number, caches in enumerate(lists):
        model(tokens[number : number + 1], cache=caches)
    evicting = [number for number, cache in enumerate(lists[0]) if isinstance(cache, vqx.EvictingCache)]
    batch = [layer[0].merge([*layer]) for layer in zip(*lists, strict=True)]
    breaking(model, evicting[0], batch, tokens[:, :1])
    with pytest.raises(ValueError, match="layers of other kinds cannot go back: start from fresh caches"):
        model(tokens[:, :1], cache=batch)
