"""Caches that are wrong in known ways: each moves a figure out of the band in which the right cache stays.

The settings are chosen so that the right cache's figure is known without measuring it: nothing was evicted
yet, turning is the identity, or the answer stands among the newest rows.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, Scorer
from vqx.registry import Registry
from vqx.settings import settings
from vqx.state.positions import rotary_of
from vqx.state.settling import settle
from vqx_eval.candidates import Candidate, Engine
from vqx_eval.forced import forced
from vqx_eval.samples import Batch, batches
from vqx_eval.task import Reference, Wanted
from vqx_eval.tasks import load_tasks

BAND = 1e-5
"""Nats that float32 may cost the right cache."""
CAUGHT = 100 * BAND
NEWEST = Scorer(score=lambda held: 0.0)
WIDTH = 16


class EvictsBeforeAttending(EvictingCache):
    """Cuts to its budget as soon as rows have come, so attention never reads what goes."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        super().update_and_fetch(keys, values)
        assert self.layer is not None
        self.layer = settle(self.plan, self.layer, room=2)[0]
        return self.keys_and_values()


class CountsOneTooMany(EvictingCache):
    """Its offset is one too large once decoding has begun."""

    @property
    def offset(self) -> int:
        decoding = self.layer is not None and self.layer.generated > 0
        return super().offset + decoding


@pytest.fixture
def divergence(tiny_llama: nn.Module, wanted: Wanted) -> Callable[..., list[float]]:
    """KL by position of the continuation under a kind of cache, mean over samples."""

    def measured(kind: type[EvictingCache], method: Method, options: Options, **rest: Any) -> list[float]:
        task = load_tasks()["continuation"]
        batch = batches(task.make(wanted._replace(length=65, answer=8)), "plain", 8)[0]
        engine = Engine(tiny_llama, chunk=64)
        candidate = engine.candidate("planted", method.budget, lambda: _caches(kind, method, options, **rest))
        full = engine.full()
        figures = task.measure(candidate, batch, Reference(full=full, batch=batch))
        return list(np.mean([sample["KL by position"] for sample in figures], axis=0))

    return measured


def _caches(kind: type[EvictingCache], method: Method, options: Options, **rest: Any) -> list[EvictingCache]:
    return [kind(method, options, number=number, **rest) for number in range(2)]


def test_evicting_before_attending_is_caught_at_the_first_token(
    divergence: Callable[..., list[float]],
) -> None:
    method, options = Method(NEWEST, 40, 2), Options(queries="keys", prompt="whole")
    right = divergence(EvictingCache, method, options)
    wrong = divergence(EvictsBeforeAttending, method, options)
    assert abs(right[0]) < BAND  # the whole prompt was read when the first token is said
    assert right[-1] > CAUGHT  # rows did go
    assert wrong[0] > CAUGHT


def test_an_offset_that_is_one_too_large_is_caught(divergence: Callable[..., list[float]]) -> None:
    method, options = Method(NEWEST, 1000, 2), Options(queries="keys")
    assert max(map(abs, divergence(EvictingCache, method, options))) < BAND  # nothing had to go
    assert max(divergence(CountsOneTooMany, method, options)) > CAUGHT


def test_turning_with_another_base_is_caught(divergence: Callable[..., list[float]]) -> None:
    # without sinks the kept rows are the newest, and turning them all alike changes no distance
    method = Method(NEWEST, 40, 0)
    absolute = divergence(EvictingCache, method, Options(queries="keys"))
    compact = Options(queries="keys", positions="compact")
    right = divergence(EvictingCache, method, compact, rotary=rotary_of(nn.RoPE(WIDTH, base=10000.0), WIDTH))
    wrong = divergence(EvictingCache, method, compact, rotary=rotary_of(nn.RoPE(WIDTH, base=500.0), WIDTH))
    assert absolute[0] > CAUGHT  # rows did go
    assert np.abs(np.subtract(right, absolute)).max() < 10 * BAND  # turned once, in float32
    assert np.abs(np.subtract(wrong, absolute)).max() > CAUGHT


def test_a_frozen_set_is_caught_by_what_was_said_last(
    lookup: nn.Module, facts: Callable[[float], Batch], toys: Registry
) -> None:
    right, frozen = (_found(lookup, facts, name) for name in ("toy-newest", "toy-frozen"))
    assert right == {0.0: 1.0, 0.5: 0.0, 1.0: 1.0}  # the sinks and the newest, nothing between
    assert frozen == {0.0: 1.0, 0.5: 0.0, 1.0: 0.0}


def _found(lookup: nn.Module, facts: Callable[[float], Batch], name: str) -> dict[float, float]:
    candidate: Candidate = Engine(lookup, 16).evicting(settings([name])[0], 12)
    return {depth: float(forced(candidate.start(), facts(depth)).hit.mean()) for depth in (0.0, 0.5, 1.0)}
