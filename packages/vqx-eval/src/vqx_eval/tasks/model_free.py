"""Streams with planted rows that need no model: what a rule keeps, against what the future reads."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import mlx.core as mx
import numpy as np
from vqx import planted
from vqx.state.settling import settle

from vqx_eval import streams
from vqx_eval.candidates import Candidate
from vqx_eval.samples import Batch, Sample, half_of
from vqx_eval.task import Figure, Figures, Reference, Wanted, task

LENGTH = 8
"""Rows of a stream, in budgets."""
CHUNK = 64

PLANTED = (
    Figure("future attention", "higher", "share of what the future reads that is still there", percent=True),
    Figure("survival", "higher", "planted rows that are kept", percent=True),
    Figure(
        "regret", "lower", "share of the future's attention that the best rows would hold and these do not"
    ),
)


FADED = (PLANTED[0], Figure("survival", "lower", "faded rows that are kept", percent=True), PLANTED[2])


def _late_riser(lanes: int, length: int, seed: int) -> planted.Planted:
    budget = length // LENGTH
    return planted.late_riser(lanes, length, riser=budget, burst=budget * 5 // 4, seed=seed)


def _independent(lanes: int, length: int, seed: int) -> planted.Planted:
    return planted.independent(lanes, length, watch=length // LENGTH, seed=seed)


def _measure(
    candidate: Candidate, batch: Batch, reference: Reference, *, make: Callable[..., planted.Planted]
) -> list[Figures]:
    budget = candidate.budget or 0
    seed = batch.samples[0].marks["seed"] + batch.samples[0].number
    stream = make(len(batch.samples), LENGTH * budget, seed=seed)
    positions = _kept(candidate, stream)
    mass = _of_contents(planted.attention(stream.future, stream.keys), stream.keys, positions)
    holds = planted.held(mass, positions)
    most = planted.best(mass, positions.shape[-1])
    survived = planted.held(stream.watched.astype(np.float32), positions) / stream.watched.sum(axis=-1)
    return [
        {"future attention": float(hold), "survival": float(alive), "regret": float(best - hold)}
        for hold, alive, best in zip(holds, survived, most, strict=True)
    ]


def _kept(candidate: Candidate, stream: planted.Planted) -> planted.Positions:
    """Positions that remain, ``[lanes, budget]``: lanes are a batch, the last row comes alone."""
    cache = candidate.start()
    keys, queries = (mx.array(array[:, None]) for array in (stream.keys, stream.queries))
    length = keys.shape[2]
    edges = [*range(0, length - 1, CHUNK), length - 1, length]
    for first, last in pairwise(edges):
        new = keys[:, :, first:last]
        read, _ = cache.update_and_fetch(new, new)
        if cache.plan.options.queries == "model" and cache.plan.method.scorer.reads_queries:
            cache.observe(queries[:, :, first:last], read, keys.shape[3] ** -0.5, "causal", None)
        mx.eval(cache.state)
    # room for two rows: with room for one, settling names a slot instead of dropping its row
    return np.array(settle(cache.plan, cache.layer, room=2)[0].rows.position[:, 0])


def _of_contents(mass: planted.Floats, keys: planted.Floats, positions: planted.Positions) -> planted.Floats:
    """The mass ``[lanes, S]`` of all copies of a row given to one of them, a kept one where there is one."""
    found = np.zeros_like(mass)
    for lane, (content, kept) in enumerate(zip(streams.contents_of(keys), positions, strict=True)):
        chosen = np.zeros(content.max() + 1, np.int64)
        chosen[content] = np.arange(len(content))
        chosen[content[kept]] = kept
        np.add.at(found[lane], chosen[content], mass[lane])
    return found


def _lanes(name: str, wanted: Wanted) -> list[Sample]:
    """One sample for each lane; the rows are drawn when the budget is known."""
    return [
        Sample(name, number, half_of(number), [], [], [], {"length": 0, "seed": wanted.seed})
        for number in range(wanted.samples)
    ]


@task("late-riser", "model-free", partial(_measure, make=_late_riser), PLANTED)
def late_riser(wanted: Wanted) -> list[Sample]:
    """One row reads low until a later burst of queries aligns with it."""
    return _lanes("late-riser", wanted)


@task("stable", "model-free", partial(_measure, make=planted.stable), PLANTED)
def stable(wanted: Wanted) -> list[Sample]:
    """Eight heavy rows that every query reads alike: the easy case."""
    return _lanes("stable", wanted)


@task("topic-shift", "model-free", partial(_measure, make=planted.topic_shift), PLANTED)
def topic_shift(wanted: Wanted) -> list[Sample]:
    """The second half's queries read other rows than the first half's."""
    return _lanes("topic-shift", wanted)


@task("null", "model-free", partial(_measure, make=_independent), PLANTED)
def null(wanted: Wanted) -> list[Sample]:
    """No row differs from another: nothing to choose, and no rule should look good."""
    return _lanes("null", wanted)


@task("early-fader", "model-free", partial(_measure, make=streams.early_fader), FADED)
def early_fader(wanted: Wanted) -> list[Sample]:
    """Eight rows that the first quarter reads most and the future least; keeping them is the mistake."""
    return _lanes("early-fader", wanted)


@task("duplicates", "model-free", partial(_measure, make=streams.duplicates), PLANTED)
def duplicates(wanted: Wanted) -> list[Sample]:
    """Some rows are said once, the others again and again; the future asks for each alike."""
    return _lanes("duplicates", wanted)


@task("one-sink", "model-free", partial(_measure, make=streams.one_sink), PLANTED)
def one_sink(wanted: Wanted) -> list[Sample]:
    """One short key, not among the first, takes most of every query's attention."""
    return _lanes("one-sink", wanted)
