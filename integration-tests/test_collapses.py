"""Methods that become another at some settings: equal bit for bit there, and different next to it.

What is equal is data that plugins declare (``vqx_collapses``); whatever is declared is run here, so a new
method needs no new test: on streams, layer by layer, and in a model, where heads or layers may share rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from vqx import Collapse, EvictingCache, LayerInfo, Options, Setting
from vqx.build import chain_of, methods_for
from vqx.registry import registry
from vqx.testing import STREAMS, attending, cache_of, forward, remaining, same_bits, stream

COLLAPSES = registry.collapses()
PAIRS = {(collapse.this.method, collapse.that.method): collapse for collapse in reversed(COLLAPSES)}
"""The first collapse of each two methods."""
KNOWN = {("keyformer", "h2o"), ("morphkv", "tova")}

ENGINES = [
    dict(queries=queries, **run)
    for queries in ("keys", "centred-keys", "model")
    for run in (
        {"cadence": "token"},
        {"interval": 1},
        {"interval": 8},
        {"interval": 8, "prompt": "whole"},
    )
]

GUARDS = [
    {"budget": 16, "n_sink": 4, "recent": 5},
    {"budget": 9, "n_sink": 0, "recent": 3},
    {"budget": 24, "n_sink": 1, "recent": 12},
    {"budget": 12, "n_sink": 2, "recent": 0},
]
"""For both sides; ``recent`` where both have it, since their defaults differ."""

PRINCIPAL = ({"queries": "model", "cadence": "token"}, {"queries": "model", "interval": 8})
"""The engine options at which every collapse is run, with other guards and on other streams."""

PROMPT = (7, 20, 1, 13)
"""Chunks, then single tokens: the second is longer than most budgets."""


@pytest.fixture(autouse=True)
def one_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides by the definition: a wrapped method has no lines in a kernel, whose sums round otherwise."""
    monkeypatch.setenv("VQX_DEVICE", "reference")


class Walked(NamedTuple):
    """What a cache held in each forward of a stream, and what remains at its end."""

    positions: list[np.ndarray[Any, Any]]  # each [B, H, n], as stored
    rows: list[mx.array]  # keys and values that remain
    columns: Mapping[str, np.ndarray[Any, Any]]
    evicted: bool


@functools.cache
def walked(
    method: str, options: tuple[tuple[str, Any], ...], engine: tuple[tuple[str, Any], ...], name: str
) -> Walked:
    tokens, cache = stream(name), cache_of(method, Options(**dict(engine)), **dict(options))
    positions, start = [], 0
    for length in (*PROMPT, *[1] * (tokens.length - sum(PROMPT))):
        forward(cache, tokens.cut(start, start + length))
        start += length
        positions.append(np.array(cache.position))
    kept = remaining(cache)
    return Walked(positions, [kept.keys, kept.values], kept.columns, kept.position.shape[2] < start)


def walk(setting: Setting, guards: Mapping[str, Any], engine: Mapping[str, Any], name: str) -> Walked:
    options = {**guards, **setting.options}
    return walked(setting.method, tuple(options.items()), tuple(engine.items()), name)


def fitting(guards: Mapping[str, Any], *settings: Setting) -> dict[str, Any]:
    """The guards that every one of the methods has."""
    known = [
        {field.name for spec in chain_of(one.method) for field in dataclasses.fields(spec.config)}
        for one in settings
    ]
    return {name: value for name, value in guards.items() if all(name in names for names in known)}


def share_rows(setting: Setting) -> bool:
    """Whether heads or layers share a budget: what they keep is not to be seen on a stream for one layer."""
    layers = [LayerInfo(number, "model", attending()) for number in range(3)]
    method, *_ = methods_for(
        chain_of(setting.method), {**fitting(GUARDS[0], setting), **setting.options}, layers
    )
    return method.floor is not None or method.share is not None


def label(value: Any) -> str:
    if isinstance(value, Collapse):
        return f"{label(value.this)} is {label(value.that)}"
    if isinstance(value, Setting):
        return f"{value.method}({', '.join(f'{name}={option}' for name, option in value.options.items())})"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={option}" for name, option in value.items()) or "defaults"
    return str(value)


def same(one: Walked, other: Walked) -> bool:
    """Bit for bit: the rows in every forward, and at the end also the statistics that both have."""
    both = one.columns.keys() & other.columns.keys()
    return (
        all(map(np.array_equal, one.positions, other.positions))
        and all(map(same_bits, one.rows, other.rows))
        and all(one.columns[name].tobytes() == other.columns[name].tobytes() for name in both)
    )


def test_the_collapses_that_the_methods_are_known_for_are_declared() -> None:
    assert set(PAIRS) >= KNOWN


def runs(collapse: Collapse) -> list[dict[str, Any]]:
    """The engine options for it, of those at which it is declared."""
    engines = ENGINES if collapse in PAIRS.values() else PRINCIPAL
    declared = collapse.engine.items()
    return [one for one in engines if all(one.get(name, value) == value for name, value in declared)]


ON_STREAMS = [one for one in COLLAPSES if not (share_rows(one.this) or share_rows(one.that))]


@pytest.mark.filterwarnings("ignore:.* with recent=0:UserWarning")
@pytest.mark.parametrize(
    ("collapse", "engine"), [(one, run) for one in ON_STREAMS for run in runs(one)], ids=label
)
def test_both_sides_keep_the_same_rows_and_statistics(collapse: Collapse, engine: dict[str, Any]) -> None:
    widely = engine in PRINCIPAL and collapse in PAIRS.values()
    engine = {**engine, **collapse.engine}
    for number, some in enumerate(GUARDS if widely else GUARDS[:1]):
        guards = fitting(some, collapse.this, collapse.that)
        for name in STREAMS if number == 0 and widely else ("tiny newest", "small integers"):
            this, that = (walk(side, guards, engine, name) for side in (collapse.this, collapse.that))
            assert this.evicted
            assert same(this, that), (guards, name)


@pytest.mark.parametrize("pair", sorted(KNOWN), ids=" is ".join)
def test_methods_with_lines_in_a_kernel_are_each_other_there_too(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VQX_DEVICE")  # a prompt in token cadence is read by C loops where they can be built
    collapse = PAIRS[pair]
    guards, engine = fitting(GUARDS[0], collapse.this, collapse.that), {**PRINCIPAL[0], **collapse.engine}
    walked.cache_clear()
    this, that = (walk(side, guards, engine, "gaussian") for side in (collapse.this, collapse.that))
    walked.cache_clear()
    assert this.evicted
    assert same(this, that)


def test_keyformer_and_h2o_share_the_accumulated_mass() -> None:
    engine = {"queries": "model"}
    keyformer = walk(Setting("keyformer", {"tau": 0.0}), GUARDS[0], engine, "gaussian")
    h2o = walk(Setting("h2o", {"normalise": None}), GUARDS[0], engine, "gaussian")
    assert set(keyformer.columns) & set(h2o.columns) == {"mass"}
    assert (h2o.columns["mass"] > 0).all()


PLAIN_H2O = Setting("h2o", {"decay": 1.0, "grace": 0, "normalise": None})

NEIGHBOURS = [
    ("gaussian", Setting("keyformer", {"tau": 1.0}), Setting("h2o", {})),
    ("topics", Setting("keyformer", {"tau": 0.0}), Setting("h2o", {"decay": 0.9, "normalise": None})),
    ("topics", Setting("keyformer", {"tau": 0.0}), Setting("h2o", {"normalise": "seen"})),
    ("gaussian", Setting("keyformer", {"tau": 1.0}), Setting("keyformer", {"tau": 1.0, "seed": 7})),
    (
        "tiny newest",
        Setting("tova", {"heads": "each", "keep_newest": False}),
        Setting("morphkv", {"window": 1}),
    ),
    ("gaussian", Setting("tova", {"heads": "layer"}), Setting("tova", {"heads": "each"})),
    ("gaussian", Setting("tova", {"heads": "each"}), Setting("morphkv", {"window": 2})),
    ("gaussian", Setting("morphkv", {"window": 3}), Setting("morphkv", {"window": 3, "fuse": "max"})),
    ("topics", Setting("h2o", {}), Setting("tova", {"heads": "each"})),
    ("gaussian", Setting("protect(h2o)", {"spans": ((28, 31),)}), Setting("h2o", {})),
    ("topics", Setting("critical(h2o)", {}), Setting("h2o", {})),
    (
        "gaussian",
        Setting("protect(h2o)", {"spans": ((28, 31),)}),
        Setting("protect(h2o)", {"spans": ((28, 31),), "keep": "share"}),
    ),
    ("topics", Setting("h2o", {}), Setting("streaming-llm", {})),
    ("topics", Setting("tova", {"heads": "each"}), Setting("streaming-llm", {})),
    ("gaussian", Setting("l2norm", {"skip": 0}), Setting("knorm", {"skip": 1})),
    ("gaussian", Setting("l2norm", {"skip": 0}), Setting("keydiff", {})),
    ("gaussian", Setting("sliding-window", {"n_sink": 0}), Setting("sink", {"n_sink": 1})),
    (
        "gaussian",
        Setting("chunkkv", {"window": 4, "chunk": 2}),
        Setting("snapkv", {"window": 4, "pool": None}),
    ),
    ("gaussian", Setting("chunkkv(h2o)", {"chunk": 2}), Setting("h2o", {})),
    ("gaussian", Setting("cam(tova)", {"merge_budget": 0}), Setting("cam", {"merge_budget": 0})),
    ("gaussian", Setting("chunkkv(h2o)", {"chunk": 2}), Setting("chunkkv", {"window": 5, "chunk": 2})),
    ("gaussian", Setting("snapkv", {"window": 1, "kernel": 3}), Setting("tova", {"heads": "each"})),
    ("gaussian", Setting("snapkv", {"window": 2, "pool": None}), Setting("tova", {"heads": "each"})),
    ("gaussian", Setting("snapkv", {"window": 3, "kernel": 3}), Setting("morphkv", {"window": 3})),
    ("gaussian", Setting("fusion", {"local": 0.2}), Setting("keydiff", {})),
    ("gaussian", Setting("fusion", {"local": 0.8}), Setting("h2o", {})),
    (
        "gaussian",
        Setting("r-kv", {"mix": 0.5, "kernel": 1, "group": "mean", "window": 3}),
        Setting("morphkv", {"over": "old", "window": 3}),
    ),
    (
        "gaussian",
        Setting("r-kv", {"mix": 1.0, "kernel": 3, "group": "mean", "window": 3}),
        Setting("morphkv", {"over": "old", "window": 3}),
    ),
    (
        "topics",
        Setting("critical", {"window": 4, "first_stage": 0.8}),
        Setting("snapkv", {"window": 4}),
    ),
    ("gaussian", Setting("protect(h2o)", {"n_sink": 0, "spans": ((1, 4),)}), Setting("h2o", {"n_sink": 3})),
    (
        "gaussian",
        Setting("chunkkv", {"chunk": 1, "window": 4, "heads": "layer"}),
        Setting("snapkv", {"pool": None, "window": 4}),
    ),
]
"""(stream, one setting, another): were one method put in the other's place, a test above would pass."""


BLOCKS_APART = [
    (
        "gaussian",
        Setting("fusion", {"local": 0.1, "recent": 5, "beyond": "expected"}),
        Setting("expected-attention", {}),
    ),
    ("gaussian", Setting("fusion", {"local": 0.0}), Setting("expected-attention", {})),
]
"""The same, of methods that need the model's queries in blocks."""


def check_apart(name: str, this: Setting, that: Setting, engine: Mapping[str, Any]) -> None:
    one, other = (walk(side, fitting(GUARDS[0], this, that), engine, name) for side in (this, that))
    assert not all(map(np.array_equal, one.positions, other.positions)), engine


@pytest.mark.parametrize("queries", ["keys", "model"])
@pytest.mark.parametrize(("name", "this", "that"), NEIGHBOURS, ids=label)
def test_next_to_a_collapse_other_rows_are_kept(
    name: str, this: Setting, that: Setting, queries: str
) -> None:
    for run in ({"cadence": "token"}, {}):
        check_apart(name, this, that, {"queries": queries, **run})


@pytest.mark.parametrize(("name", "this", "that"), BLOCKS_APART, ids=label)
def test_next_to_a_collapse_of_blocks_other_rows_are_kept(name: str, this: Setting, that: Setting) -> None:
    check_apart(name, this, that, {"queries": "model"})


class Written(NamedTuple):
    """What ``mlx_lm.generate`` wrote, and what its caches held at the end."""

    text: str
    caches: list[EvictingCache]


Write = Callable[[Setting, Mapping[str, Any]], Written]

ADAPTED = {"queries": "keys", "cadence": "token"}
ASKED, CHUNK, ANSWERED = 100, 70, 12
MODEL_GUARDS = {"budget": 56, "n_sink": 4, "recent": 20}


def writer(reader: Any, prompt: list[int]) -> Write:
    """Twelve tokens after the prompt, read in two chunks; each setting once."""

    @functools.cache
    def written(method: str, options: tuple[tuple[str, Any], ...]) -> Written:
        caches = vqx.make_cache(reader.model, method, **dict(options))
        text = mlx_lm.generate(
            reader.model,
            reader.tokenizer,
            prompt,
            max_tokens=ANSWERED,
            prompt_cache=caches,
            prefill_step_size=CHUNK,
        )
        return Written(text, caches)

    def write(setting: Setting, options: Mapping[str, Any]) -> Written:
        return written(setting.method, tuple({**options, **setting.options}.items()))

    return write


@pytest.fixture(scope="module")
def write(embedded: Any, texts: Mapping[str, list[int]]) -> Write:
    """By the embedded model."""
    return writer(embedded, texts["narrative"][:ASKED])


@pytest.fixture(scope="module")
def write_some(four_layers: Any, texts: Mapping[str, list[int]]) -> Write:
    """By the first four of its layers."""
    return writer(four_layers, texts["narrative"][:ASKED])


def both(write: Write, collapse: Collapse, engine: Mapping[str, Any]) -> tuple[Written, Written]:
    guards = fitting(MODEL_GUARDS, collapse.this, collapse.that)
    options = {**guards, **engine, **collapse.engine}
    return write(collapse.this, options), write(collapse.that, options)


def by_head(cache: EvictingCache) -> tuple[np.ndarray[Any, Any], ...]:
    """Of each row that remains its head and place ``[N, 2]``, its key and its value ``[N, D]``, head by head.

    For one sequence, whether every head has its rows or all share a lane.
    """
    kept = remaining(cache)
    head = kept.columns.get("head", np.arange(kept.position.shape[1])[:, None])
    place = np.stack(np.broadcast_arrays(head, kept.position), axis=-1).reshape(-1, 2)
    return place, *(np.array(array[0]).reshape(len(place), -1) for array in (kept.keys, kept.values))


IN_A_MODEL = [
    (collapse, run)
    for collapse in COLLAPSES
    if collapse in PAIRS.values() or collapse not in ON_STREAMS
    for run in ({}, {"interval": 5, "prompt": "whole"})
]
"""One collapse of each two methods, and all that are not run on streams."""


@pytest.mark.parametrize(("collapse", "engine"), IN_A_MODEL, ids=label)
def test_in_a_model_both_sides_keep_the_same_rows_of_every_layer_and_head_and_write_the_same_text(
    collapse: Collapse, engine: dict[str, Any], write_some: Write
) -> None:
    this, that = both(write_some, collapse, engine)
    assert this.text == that.text
    for one, other in zip(this.caches, that.caches, strict=True):
        assert one.tokens_kept == other.tokens_kept < ASKED < one.tokens_seen
        (place, *rows), (other_place, *other_rows) = by_head(one), by_head(other)
        assert np.array_equal(place, other_place)
        for here, there in zip(rows, other_rows, strict=True):
            if one.in_lanes:  # sums over a lane come in another order, so later layers' rows in other bits
                assert np.allclose(here, there, rtol=1e-4, atol=1e-4)
            else:
                assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("engine", [{}, ADAPTED], ids=label)
@pytest.mark.parametrize("pair", sorted(KNOWN))
def test_what_methods_are_known_for_holds_in_the_embedded_model(
    pair: tuple[str, str], engine: dict[str, Any], write: Write
) -> None:
    """At the defaults, and as in the adapted system."""
    this, that = both(write, PAIRS[pair], engine)
    assert this.text == that.text
    for one, other in zip(this.caches, that.caches, strict=True):
        assert one.tokens_kept == other.tokens_kept < ASKED < one.tokens_seen
        assert mx.array_equal(one.position, other.position).item()
        assert all(map(same_bits, one.keys_and_values(), other.keys_and_values()))


IN_A_MODEL_APART = [
    (Setting("ada(h2o)", {"floor": 0.9}), Setting("h2o", {})),
    (Setting("ada", {"window": 4, "floor": 0.2}), Setting("snapkv", {"window": 4})),
    (Setting("squeezeattention(h2o)", {"percent": 0.9}), Setting("h2o", {})),
    (Setting("squeezeattention", {"percent": 0.9}), Setting("streaming-llm", {})),
    (Setting("pyramidkv", {"beta": 2, "window": 4}), Setting("snapkv", {"window": 4})),
    (Setting("keyformer", {"tau": 1.0}), PLAIN_H2O),
]


@pytest.mark.parametrize(("this", "that"), IN_A_MODEL_APART, ids=label)
def test_in_a_model_other_rows_are_kept_next_to_a_collapse(
    this: Setting, that: Setting, write_some: Write
) -> None:
    one, other = (write_some(side, fitting(MODEL_GUARDS, this, that)).caches for side in (this, that))
    pairs = zip(one, other, strict=True)
    assert not any(np.array_equal(by_head(first)[0], by_head(second)[0]) for first, second in pairs)
