"""Streams with planted rows, and what a kept set of them is worth: benchmarks that need no model.

Each stream says what the future reads, which no rule of eviction can know, so a rule is measured against the
truth and not against another rule. Lanes are seeds: independent streams, drawn at once.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vqx.scorers import Arrivals, Held, Method, Scorer

Floats = npt.NDArray[np.float32]
Positions = npt.NDArray[np.integer[Any]]

WIDTH = 64
"""Of keys and queries; a logit is their product over sqrt(WIDTH) = 8."""
COMMON = 2.0
"""The mean logit of one background row's key against another's; around it they spread as N(0, 1)."""
FUTURE = 64
"""Queries that come after the stream."""


class Planted(NamedTuple):
    """What one layer is shown, and what reads it afterwards."""

    keys: Floats  # [lanes, S, D]
    queries: Floats  # [lanes, S, D], the true ones
    future: Floats  # [lanes, F, D], true queries after the last row
    watched: npt.NDArray[np.bool_]  # [lanes, S], the planted rows


def late_riser(
    lanes: int, length: int, *, riser: int, burst: int, burst_length: int = 24, seed: int = 0
) -> Planted:
    """The row at ``riser`` reads low until queries from ``burst`` on align with it.

    The background reads it at logit 0 (and its own rows at 2 + N(0, 1)); the burst reads it at 7.5, and
    the burst's own rows at 3 + N(0, 1/16). Every other query of the future belongs to the burst's topic.
    Each row's key is its query, so keys that stand in for queries are no guess here: the stream measures
    the rule of eviction alone.
    """
    keys, future = _background(lanes, length, np.random.default_rng([seed, length]))
    keys[:, riser] = 2.5 * _topic(np.zeros_like(keys[:, riser]))
    keys[:, burst : burst + burst_length] = _topic(keys[:, burst : burst + burst_length])
    future[:, ::2] = _topic(future[:, ::2])
    return Planted(keys, keys, future, _at(lanes, length, [riser]))


def stable(lanes: int, length: int, *, heavy: int = 8, seed: int = 0) -> Planted:
    """``heavy`` rows that every query reads at twice the common logit: noise has nothing to rescue.

    They are every second row from the fifth on: a rule without recent rows keeps for good only what comes
    before its budget is full. Each row's key is its query, as in :func:`late_riser`.
    """
    keys, future = _background(lanes, length, np.random.default_rng([seed, length]))
    rows = range(4, 4 + 2 * heavy, 2)
    keys[:, rows, 1] *= 2
    return Planted(keys, keys, future, _at(lanes, length, rows))


def independent(lanes: int, length: int, *, watch: int, seed: int = 0) -> Planted:
    """The null: no row differs from another, that at ``watch`` included. Each row's key is its query."""
    keys, future = _background(lanes, length, np.random.default_rng([seed, length]))
    return Planted(keys, keys, future, _at(lanes, length, [watch]))


def topic_shift(lanes: int, length: int, *, shift: bool = True, seed: int = 0) -> Planted:
    """The first half's queries and the second half's live in different subspaces; rows are of both, mixed.

    A query reads rows of its own topic at 3 + N(0, 1) and the others at 0. Rows of both topics come all
    the time and only the reading shifts, so neither age nor keys tell what is read: this stream needs true
    queries. Watched are the rows of the second topic, which the future reads. ``shift=False`` is the null
    control: the second topic is read throughout.
    """
    draw = np.random.default_rng([seed, length])
    second = draw.random((lanes, length)) < 0.5
    asks = (np.arange(length) >= length // 2) | (not shift)
    return Planted(
        _of_topics(draw, second),
        _of_topics(draw, np.broadcast_to(asks, (lanes, length))),
        _of_topics(draw, np.ones((lanes, FUTURE), bool)),
        second,
    )


def attention(queries: Floats, keys: Floats) -> Floats:
    """The mean share of attention that each row gets when all are there: ``[lanes, S]``."""
    logits = queries @ keys.swapaxes(-1, -2) / np.float32(math.sqrt(keys.shape[-1]))
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    mean: Floats = (weights / weights.sum(axis=-1, keepdims=True)).mean(axis=-2)
    return mean


def held(mass: Floats, positions: Positions) -> Floats:
    """How much of ``mass`` ``[lanes, S]`` the rows at ``positions`` ``[lanes, m]`` hold: ``[lanes]``."""
    total: Floats = np.take_along_axis(mass, positions.astype(np.int64), axis=-1).sum(axis=-1)
    return total


def best(mass: Floats, size: int) -> Floats:
    """The most of ``mass`` that any ``size`` rows hold: ``[lanes]``."""
    most: Floats = np.sort(mass, axis=-1)[:, -size:].sum(axis=-1)
    return most


def worth(stream: Planted, positions: Positions) -> dict[str, Any]:
    """Survival of the planted rows, the future's attention held, and the regret against the best set.

    Means over lanes with their standard error; survival with Wilson's interval, each planted row a trial.
    """
    mass = attention(stream.future, stream.keys)
    survived = int(held(stream.watched.astype(np.float32), positions).sum())
    planted = int(stream.watched.sum())
    holds, most = held(mass, positions), best(mass, positions.shape[-1])
    return {
        "planted": planted,
        "survived": survived,
        "survival": survived / planted,
        "survival_interval_95": binomial_interval(survived, planted),
        "future_mass": mean_and_error(holds),
        "best_future_mass": mean_and_error(most),
        "regret": mean_and_error(most - holds),
    }


def mean_and_error(values: Floats) -> tuple[float, float]:
    """The mean over lanes and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def binomial_interval(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate."""
    z, rate = 1.96, successes / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    whole = 1 + z * z / trials
    return max(0.0, (centre - spread) / whole), min(1.0, (centre + spread) / whole)


def random_eviction(budget: int, n_sink: int, seed: int = 0) -> Method:
    """The baseline of chance: whenever a row must go, each that is no sink is as likely (on the host)."""

    def init(arrivals: Arrivals) -> Mapping[str, Floats]:
        place = np.arange(arrivals.start, arrivals.start + arrivals.length, dtype=np.float32)
        return {"place": arrivals.full(0.0) + place}

    def score(held: Held) -> Floats:
        place = held.stats["place"].astype(np.int64)
        draw = np.random.default_rng([seed, held.newest])
        # drawn by place and not by slot: slots depend on how the stream is cut
        return np.take_along_axis(
            draw.random((*place.shape[:2], held.newest + 1), dtype=np.float32), place, axis=2
        )

    return Method(Scorer(score, init), budget, n_sink)


def _background(lanes: int, length: int, draw: np.random.Generator) -> tuple[Floats, Floats]:
    """Keys and future queries with a common part, nothing of them in the direction of the burst's topic."""
    rows = draw.standard_normal((lanes, length + FUTURE, WIDTH), dtype=np.float32)
    rows[..., 0], rows[..., 1] = 0.0, math.sqrt(8 * COMMON)
    return rows[:, :length].copy(), rows[:, length:].copy()


def _topic(rows: Floats) -> Floats:
    """Rows of the burst's topic: half of what made them differ, and no part in common with the background."""
    rows = rows * np.float32(0.5)
    rows[..., 0], rows[..., 1] = math.sqrt(8 * 3.0), 0.0
    return rows


def _of_topics(draw: np.random.Generator, second: npt.NDArray[np.bool_]) -> Floats:
    """Rows ``[lanes, n, D]`` of the first topic (first half of the channels) or of the second."""
    rows = draw.standard_normal((*second.shape, 2, WIDTH // 2), dtype=np.float32)
    rows *= 1.2  # logits spread by 1.2 * 1.2 * sqrt(31) / 8 = 1
    rows[..., 0] = math.sqrt(8 * 3.0)
    own = np.stack([~second, second], axis=-1)
    return np.where(own[..., None], rows, np.float32(0)).reshape(*second.shape, WIDTH)


def _at(lanes: int, length: int, rows: Iterable[int]) -> npt.NDArray[np.bool_]:
    watched = np.zeros((lanes, length), bool)
    watched[:, list(rows)] = True
    return watched
