"""Each stream tells a rule that is right for it from one that is wrong, and says what it claims to hold."""

from __future__ import annotations

from statistics import mean

# before MLX: it shows MLX a fast BLAS
import vqx  # isort: split

import mlx.core as mx
import numpy as np
import pytest
from vqx import EvictingCache, Held, Method, Options, Scorer, planted
from vqx_eval import streams
from vqx_eval.candidates import Candidate
from vqx_eval.layers import chance
from vqx_eval.samples import batches
from vqx_eval.task import Reference, Wanted
from vqx_eval.tasks import load_tasks

LANES, BUDGET = 8, 32
LENGTH = 8 * BUDGET
SURE = 0.9


def once_only(held: Held) -> mx.array:
    """Rows with a twin among the newer ones go first."""
    keys = held.keys.astype(mx.float32)
    twins = mx.abs(keys[:, :, :, None] - keys[:, :, None]).max(axis=-1) == 0
    newer = held.position[:, :, None] > held.position[..., None]
    return -(twins & newer).any(axis=-1).astype(mx.float32)


RULES = {
    "never forgets": Method(vqx.accumulated(), BUDGET, 4, 8),
    "forgets": Method(vqx.accumulated(decay=0.9), BUDGET, 4, 8),
    "newest": Method(Scorer(score=lambda held: 0.0), BUDGET, 4, 8),
    "once only": Method(Scorer(score=once_only), BUDGET, 4, 0),
}


def measured(task: str, rule: str, wanted: Wanted) -> dict[str, float]:
    """Means over lanes."""
    candidate = (
        chance(BUDGET)
        if rule == "chance"
        else Candidate(rule, BUDGET, {}, lambda: EvictingCache(RULES[rule], Options(queries="model")))
    )
    one = load_tasks()[task]
    (batch,) = batches(one.make(wanted._replace(samples=LANES)), "plain", LANES)
    found = one.measure(candidate, batch, Reference(full=candidate, batch=batch))
    return {name: mean(lane[name] for lane in found) for name in found[0]}


def test_early_faders_stay_with_a_rule_that_never_forgets(wanted: Wanted) -> None:
    wrong, right = (measured("early-fader", rule, wanted) for rule in ("never forgets", "forgets"))
    assert wrong["survival"] > SURE
    assert right["survival"] < 1 - SURE
    assert right["future attention"] > wrong["future attention"]
    figures = {figure.name: figure.better for figure in load_tasks()["early-fader"].figures}
    assert figures["survival"] == "lower"


def test_rows_said_once_go_with_a_rule_that_counts_how_often_they_were_read(wanted: Wanted) -> None:
    wrong, chances, right = (
        measured("duplicates", rule, wanted) for rule in ("never forgets", "chance", "once only")
    )
    assert wrong["survival"] < 1 - SURE
    assert right["survival"] > SURE
    assert right["future attention"] > SURE
    assert wrong["regret"] > 0.3
    assert right["regret"] < chances["regret"]


def test_a_sink_that_is_not_among_the_first_rows_is_lost_by_place_alone(wanted: Wanted) -> None:
    wrong, right = (measured("one-sink", rule, wanted) for rule in ("newest", "never forgets"))
    assert wrong["survival"] == 0
    assert right["survival"] == 1
    assert right["future attention"] > 0.5 > wrong["future attention"]


@pytest.mark.parametrize("task", ["early-fader", "duplicates", "one-sink", "late-riser", "stable"])
def test_no_rule_holds_more_than_the_best_rows(task: str, wanted: Wanted) -> None:
    for rule in RULES:
        assert measured(task, rule, wanted)["regret"] > -1e-6


def test_faders_are_read_early_and_never_again() -> None:
    stream = streams.early_fader(LANES, LENGTH)
    early = planted.attention(stream.queries[:, 12 : LENGTH // 4], stream.keys)
    assert float((early * stream.watched).sum(axis=-1).min()) > 0.8
    later = planted.attention(stream.queries[:, LENGTH // 4 :], stream.keys)
    future = planted.attention(stream.future, stream.keys)
    share = float(stream.watched[0].mean())
    assert float((later * stream.watched).sum(axis=-1).max()) < share / 2
    assert float((future * stream.watched).sum(axis=-1).max()) < share / 2


def test_copies_of_a_content_are_one() -> None:
    stream = streams.duplicates(LANES, LENGTH)
    contents = streams.contents_of(stream.keys)
    different = [len(set(lane.tolist())) for lane in contents]
    assert different == [LENGTH // 16] * LANES
    for lane, content in enumerate(contents):
        counts = np.bincount(content)
        assert (counts[content[stream.watched[lane]]] == 1).all()
        assert (counts[content[~stream.watched[lane]]] > 1).all()


def test_the_sink_takes_most_and_its_key_is_short() -> None:
    stream = streams.one_sink(LANES, LENGTH)
    for queries in (stream.queries, stream.future):
        share = (planted.attention(queries, stream.keys) * stream.watched).sum(axis=-1)
        assert 0.5 < float(share.min()) < float(share.max()) < 0.9
    lengths = np.linalg.norm(stream.keys, axis=-1)
    assert (lengths[:, streams.SINK_AT] == lengths.min(axis=-1)).all()
