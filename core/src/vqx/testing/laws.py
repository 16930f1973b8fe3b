"""The laws that every eviction method keeps, as tests that a plugin inherits.

They say what no method may do, whatever its scores: lose a protected row, invent or move one, exceed the
budget, or depend on what stands beside it.
"""

import copy
import dataclasses
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import pytest

import vqx
from vqx.build import split_options
from vqx.options import Options, Queries
from vqx.state.cache import EvictingCache
from vqx.testing.batching import Batched
from vqx.testing.driving import (
    PROMPT,
    Kept,
    Walk,
    cache_of,
    count,
    feed,
    forward,
    method_of,
    offered,
    remaining,
    same_bits,
    walk,
)
from vqx.testing.streams import Shape, Stream, stream

QUERIES: tuple[Queries, ...] = ("keys", "centred-keys", "model")

ENGINES = [
    *(Options(queries=queries, cadence="token") for queries in QUERIES),
    *(Options(queries=queries, interval=interval) for queries in QUERIES for interval in (1, 4)),
]

Setting = Mapping[str, Any]


class MethodLaws:
    """Inherit, name the method, list the settings to try; pytest collects the laws under your class.

    Every law runs at every setting, in token cadence (unless the method merges values, sums up queries or
    lets heads share a budget) and in block cadence with intervals 1 and 4: at the first setting with keys,
    centred keys and true queries (unless it reads none, or heads share a budget), at the others with true
    queries alone.
    """

    method: ClassVar[str]
    """The method's name, as in ``vqx.load(method)``."""
    settings: ClassVar[Sequence[Setting]] = ({},)
    """Options to try beside the budget, where each key-value head is ranked alone. No setting may warn, nor
    depend on whether a token belongs to the prompt."""
    pooled_settings: ClassVar[Sequence[Setting]] = ()
    """Options at which the heads of a layer are ranked together, or share a budget: only batch rows are held
    apart."""
    budget: ClassVar[int] = 16
    """Rows per layer; the streams are 64 tokens long, in chunks of up to 20."""
    streams: ClassVar[Sequence[str]] = ("topics", "duplicates", "tiny newest", "dominant sink")
    """Streams for the laws on what a forward finds."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Fill in the arguments that the laws name."""
        first, *others = (*self.settings, *self.pooled_settings)
        engines = self._engines()
        axes: dict[str, Sequence[Any]] = {
            "engine": engines,
            "queries": [*dict.fromkeys(engine.queries for engine in engines)],
        }
        names = ["setting", *(name for name in axes if name in metafunc.fixturenames)]
        if len(names) > 1:
            values = axes[names[1]]
            fewer = [value for value in values if getattr(value, "queries", value) == "model"]
            pairs = [(first, value) for value in values] + [(s, value) for s in others for value in fewer]
            metafunc.parametrize(names, pairs, ids=["-".join(map(_label, pair)) for pair in pairs])
        elif "setting" in metafunc.fixturenames:
            metafunc.parametrize("setting", [first, *others], ids=_label)
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=_label)

    # what a forward finds

    def test_the_budget_is_never_exceeded_between_forwards(self, setting: Setting, engine: Options) -> None:
        for name, walked in self._walks(setting, engine):
            budget, slack = walked.method.budget, engine.interval - 1
            for step in walked.steps:
                decoding = step.stop - step.start == 1
                assert step.tokens_kept <= budget + (slack if decoding else 0), (name, step.stop)
                assert count(step.kept) <= budget + slack, (name, step.stop)
                if decoding:
                    assert count(step.lanes) <= budget + engine.interval, (name, step.stop)

    def test_what_the_cache_says_remains_does_remain(self, setting: Setting, engine: Options) -> None:
        for name, walked in self._walks(setting, engine):
            for step, following in itertools.pairwise(walked.steps):
                assert step.tokens_kept == count(following.kept), (name, step.stop)
                for kept, held in zip(following.kept, step.lanes, strict=True):
                    assert set(kept) <= set(held), f"{name}: a row came back at token {step.stop}"

    def test_sinks_and_recent_rows_survive(self, setting: Setting, engine: Options) -> None:
        for name, walked in self._walks(setting, engine):
            for step in walked.steps[1:]:
                sinks = np.arange(min(walked.method.n_sink, step.start))
                recent = np.arange(max(step.start - walked.method.recent, 0), step.start)
                for lane in step.kept:
                    assert np.isin(sinks, lane).all(), f"{name}: a sink went before token {step.start}"
                    assert np.isin(recent, lane).all(), f"{name}: a recent row went before token {step.start}"

    def test_kept_rows_are_the_offered_ones_bit_for_bit(self, setting: Setting, engine: Options) -> None:
        for name, walked in self._walks(setting, engine):
            assert [step.strays for step in walked.steps] == [0] * len(walked.steps), name

    def test_what_is_kept_does_not_depend_on_when_the_cache_is_looked_at(self, setting: Setting) -> None:
        """Tokens wait to be scored together; a look at the cache has them scored at once."""
        engine, tokens, found = Options(queries="model", interval=6), stream("gaussian"), []
        for looks in (False, True):
            cache = self._cache(setting, engine)
            for at, (start, stop) in enumerate(itertools.pairwise([0, 20, *range(21, tokens.length + 1)])):
                forward(cache, tokens.cut(start, stop))
                if looks and at % 4:
                    assert cache.layer is not None
            found.append(remaining(cache))
        assert (found[0].position == found[1].position).all()
        for name, column in found[0].columns.items():
            np.testing.assert_allclose(column, found[1].columns[name], rtol=1e-4, atol=1e-6, err_msg=name)

    def test_positions_are_distinct_and_new_rows_stand_last(self, setting: Setting, engine: Options) -> None:
        for name, walked in self._walks(setting, engine):
            for step, lane in [(each, lane) for each in walked.steps for lane in each.lanes]:
                assert (np.diff(np.sort(lane)) > 0).all(), (name, step.start)
                new = np.arange(step.start, step.stop)
                if len(new) > 1:  # one token sees everything: its row may stand anywhere
                    assert (lane[-len(new) :] == new).all(), (name, step.start)
                assert (lane == step.stop - 1).any(), (name, step.start)

    def test_the_offset_counts_the_tokens_seen(self, setting: Setting, engine: Options) -> None:
        for name, walked in self._walks(setting, engine):
            assert [step.offset for step in walked.steps] == [step.stop for step in walked.steps], name

    def test_all_rows_are_returned_as_offered_before_the_first_eviction(
        self, setting: Setting, engine: Options
    ) -> None:
        tokens, cache, seen = stream("gaussian"), self._cache(setting, engine), 0
        for length in (3, 1, 1, self.budget - 6, 1):
            seen += length
            held = forward(cache, tokens.cut(seen - length, seen))
            offered = tokens.cut(0, seen)
            for keys, values in (held, cache.keys_and_values()):
                assert same_bits(keys, offered.keys)
                assert same_bits(values, offered.values)
        assert seen == cache.tokens_kept == self.budget

    def test_rows_keep_their_dtype_and_statistics_are_float32(
        self, setting: Setting, engine: Options, dtype: mx.Dtype
    ) -> None:
        tokens = stream("gaussian").astype(dtype)
        cache = self._fed(setting, engine, tokens)
        kept = remaining(cache)
        columns = dict(kept.columns)
        head = columns.pop("head", None)
        for rows, held, stored in zip(kept[:2], cache.keys_and_values(), tokens[1:], strict=True):
            assert rows.dtype == held.dtype == dtype
            if stored is tokens.values and cache.plan.method.merge is not None:
                continue
            assert same_bits(rows, offered(stored, kept.position, head))
        assert {column.dtype for column in columns.values()} <= {np.dtype(np.float32)}

    # what it must not depend on

    def test_token_cadence_does_not_see_how_the_stream_was_cut(
        self, setting: Setting, queries: Queries
    ) -> None:
        engine = Options(queries=queries, cadence="token")
        if engine not in self._engines():
            with pytest.raises(ValueError, match="cadence='block'"):
                self._cache(setting, engine)
            return
        for name in ("topics", "tiny newest"):
            tokens = stream(name)
            every, first = tokens.length, self.budget + 1
            one, *others = (
                remaining(feed(self._cache(setting, engine), tokens, lengths))
                for lengths in ([1] * every, [every], [first, every - first], [*[5] * 9, 1, every - 46])
            )
            assert one.position.shape[2] == self.budget
            for other in others:
                _alike(other, one, name)

    def test_batch_rows_and_heads_do_not_see_each_other(self, setting: Setting, engine: Options) -> None:
        tokens, others = stream("gaussian"), stream("topics")
        together = remaining(self._fed(setting, engine, tokens))
        for row in range(2):
            alone = remaining(self._fed(setting, engine, tokens.lanes(batch=slice(row, row + 1))))
            _alike(alone, _lane(together, slice(row, row + 1), slice(None)), f"batch row {row}")
        if setting in self.pooled_settings:
            return
        alone = remaining(self._fed(setting, engine, tokens.lanes(heads=slice(0, 1))))
        _alike(alone, _lane(together, slice(None), slice(0, 1)), "head 0 without head 1")
        half = others.lanes(heads=slice(0, 1)), tokens.lanes(heads=slice(1, 2))
        mixed = Stream(*(mx.concatenate([*pair], axis=1) for pair in zip(*half, strict=True)))
        beside = _lane(remaining(self._fed(setting, engine, mixed)), slice(None), slice(1, 2))
        _alike(beside, _lane(together, slice(None), slice(1, 2)), "head 1 beside another head 0")

    def test_same_options_keep_the_same_rows(self, setting: Setting, engine: Options) -> None:
        one, other = (remaining(self._fed(setting, engine, stream("duplicates"))) for _ in range(2))
        assert np.array_equal(one.position, other.position)
        assert same_bits(one.keys, other.keys)
        for name, column in one.columns.items():
            assert np.array_equal(column, other.columns[name]), name

    def test_a_copy_of_a_cache_continues_alike(self, setting: Setting, engine: Options) -> None:
        tokens, others = stream("gaussian"), stream("topics")
        half = sum(PROMPT)
        cache = feed(self._cache(setting, engine), tokens, PROMPT)
        twin = copy.deepcopy(cache)
        feed(cache, others, [1] * (others.length - half), half)
        feed(twin, tokens, [1] * (tokens.length - half), half)
        straight = remaining(self._fed(setting, engine, tokens))
        assert np.array_equal(remaining(twin).position, straight.position)
        assert not same_bits(remaining(cache).keys, straight.keys)

    def test_sequences_join_and_leave_a_batch_and_keep_what_they_keep_alone(self, setting: Setting) -> None:
        tokens = stream("gaussian", shape=Shape(length=80, batch=6))
        every: Sequence[Setting] = (
            {},
            {"interval": 4},
            {"positions": "compact"},
            {"positions": "compact", "interval": 4},
        )
        for options in every if setting == [*self.settings, *self.pooled_settings][0] else every[:1]:
            engine = Options(queries="model", **options)
            shared = self._cache(setting, Options(queries="model")).plan.method.floor is not None
            if "positions" in options and shared:  # which heads that share a budget do not have
                continue
            followed = Batched(self._cache(setting, engine), tokens)
            for number, (together, alone) in enumerate(followed.run()):
                assert together.tokens_seen == alone.tokens_seen
                _alike(remaining(together), remaining(alone), f"{options}, look {number}")
            assert any(cache.tokens_kept < cache.tokens_seen for cache in followed.alone)

    def test_what_is_remembered_does_not_depend_on_the_budget(self, setting: Setting) -> None:
        """Layers that share their rows read a prompt with another budget than they go on with, and sequences
        of one batch have budgets of their own."""
        engine, tokens, found = Options(queries="model"), stream("gaussian"), []
        for budget in (self.budget, 2 * self.budget):
            cache = feed(
                self._cache({**setting, "budget": budget}, engine), tokens, [7, self.budget - 9, 1, 1]
            )
            assert cache.layer is not None
            found.append((remaining(cache), cache.layer.notes, cache.plan.method.scorer.window))
        (one, notes, window), (other, others, same) = found
        assert window == same
        _alike(one, other, "rows")
        assert [*notes] == [*others]
        assert all(mx.array_equal(note, others[name]) for name, note in notes.items())

    # what it refuses

    def test_nan_keys_are_refused_and_nothing_is_lost(self, setting: Setting, engine: Options) -> None:
        tokens, cache = stream("gaussian"), self._cache(setting, engine)
        broken = Stream(*(mx.array(array) for array in tokens))
        broken.keys[1, 0, 9, 2] = mx.nan
        feed(cache, broken, [7, 5])
        with pytest.raises(ValueError, match="NaN"):
            forward(cache, tokens.cut(12, 13))
        assert cache.tokens_seen == cache.size() == 12
        assert same_bits(cache.keys_and_values()[0], broken.cut(0, 12).keys)

    def test_a_budget_that_leaves_no_room_is_refused(self, setting: Setting) -> None:
        config = vqx.load(self.method).config
        sinks = self._cache(setting, self._engines()[0]).plan.method.n_sink
        for budget in (0, -3, sinks, 2.5, None):
            with pytest.raises(ValueError, match="budget"):
                config(**{**setting, "budget": budget})

    def test_an_unknown_option_is_answered_with_the_nearest(self) -> None:
        spec = vqx.load(self.method)
        for field in dataclasses.fields(spec.config):
            with pytest.raises(ValueError, match=f"did you mean '{field.name}'"):
                split_options((spec,), {f"{field.name}s": 1})

    def test_the_config_is_frozen_and_takes_keywords_only(self) -> None:
        config = vqx.load(self.method).config
        parameters = inspect.signature(config).parameters.values()
        assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}
        required = [each.name for each in parameters if each.default is inspect.Parameter.empty]
        assert required == ["budget"]
        with pytest.raises(dataclasses.FrozenInstanceError):
            config(**{"budget": self.budget, **[*self.settings, *self.pooled_settings][0]}).budget = 1

    def test_the_spec_has_the_name_of_its_entry_point(self) -> None:
        spec = vqx.load(self.method)
        assert spec.name == self.method
        assert self.method in vqx.names()
        assert spec.summary
        assert spec.paper
        assert set(spec.adapted) <= {field.name for field in dataclasses.fields(spec.config)}

    # how the laws look

    def _engines(self) -> list[Options]:
        """The engine's options that this method can be run with and that make a difference to it."""
        built = method_of(
            self.method, **{"budget": self.budget, **[*self.settings, *self.pooled_settings][0]}
        )
        shared = built.floor is not None
        blocks_only = shared or built.merge is not None or built.scorer.note is not None
        return [
            engine
            for engine in ENGINES
            if ((built.scorer.reads_queries and not shared) or engine.queries == "model")
            and not (blocks_only and engine.cadence == "token")
        ]

    def _cache(self, setting: Setting, engine: Options) -> EvictingCache:
        return cache_of(self.method, engine, **{"budget": self.budget, **setting})

    def _fed(self, setting: Setting, engine: Options, tokens: Stream) -> EvictingCache:
        cache = feed(self._cache(setting, engine), tokens, [*PROMPT, *[1] * (tokens.length - sum(PROMPT))])
        assert cache.tokens_kept < cache.tokens_seen, "nothing was evicted: the law watched nothing"
        return cache

    def _walks(self, setting: Setting, engine: Options) -> Iterator[tuple[str, Walk]]:
        options = tuple({"budget": self.budget, **setting}.items())
        for name in self.streams:
            walked = walk(self.method, engine, options, name)
            last = walked.steps[-1]
            assert count(last.lanes) < last.stop, "nothing was evicted: the law watched nothing"
            yield name, walked


def _lane(kept: Kept, batch: slice, heads: slice) -> Kept:
    columns = {name: column[batch, heads] for name, column in kept.columns.items()}
    return Kept(kept.keys[batch, heads], kept.values[batch, heads], kept.position[batch, heads], columns)


def _alike(one: Kept, other: Kept, what: str) -> None:
    """The same rows; statistics may differ by what another order of additions does in float32."""
    assert np.array_equal(one.position, other.position), what
    assert same_bits(one.keys, other.keys), what
    assert same_bits(one.values, other.values), what
    for name, column in one.columns.items():
        np.testing.assert_allclose(column, other.columns[name], rtol=1e-5, atol=1e-5, err_msg=what)


def _label(value: Any) -> str:
    if isinstance(value, Options):
        cadence = value.cadence if value.interval == 1 else f"every {value.interval}"
        return f"{value.queries} {cadence}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={option}" for name, option in value.items()) or "defaults"
    return str(value).removeprefix("mlx.core.")
