"""More planted streams (:mod:`vqx.planted`): rows that cease to matter, copies, a sink that is not first.

The background is that of the core's streams: a common part that every query reads at logit 2, and
N(0, 1) around it.
"""

import numpy as np
import numpy.typing as npt
from vqx.planted import COMMON, FUTURE, WIDTH, Floats, Planted

SINK_AT = 8
"""Behind the first rows that methods keep unasked."""
GUARDED = 4
"""First rows that methods keep unasked."""


def early_fader(lanes: int, length: int, *, faders: int = 8, seed: int = 0) -> Planted:
    """``faders`` rows near the start that the first quarter's queries read at logit 7.5, and no later one.

    Later queries read them at N(0, 1), and all other rows at 2 + N(0, 1). A rule that adds attention up
    holds what was once read much; the future reads it least of all. Watched are the faders: here a low
    survival is good.
    """
    draw = np.random.default_rng([seed, length])
    keys, queries, future = (_background(draw, lanes, n) for n in (length, length, FUTURE))
    faded = slice(GUARDED, GUARDED + faders)
    early = slice(GUARDED + faders, length // 4)
    keys[:, faded, :2] = 7.5, 0.0
    queries[:, early] *= np.float32(0.5)
    queries[:, early, 0] = 8.0
    return Planted(keys, queries, future, _watched(lanes, length, faded))


def duplicates(lanes: int, length: int, *, seed: int = 0) -> Planted:
    """As many contents as half a budget (a 16th of the length): half are said once, at the start, the others
    again and again.

    Each row's key is its query, so what is repeated is read all the time; the future asks for every content
    alike. One copy of a content is as good as many. Watched are the rows that were said once.
    """
    draw = np.random.default_rng([seed, length])
    count = length // 16
    contents = _background(draw, lanes, count)
    rare = count // 2
    once = np.arange(GUARDED, GUARDED + rare)
    said = draw.integers(rare, count, (lanes, length))
    said[:, once] = np.arange(rare)
    keys = np.take_along_axis(contents, said[..., None], axis=1)
    asked = draw.integers(0, count, (lanes, FUTURE))
    future = 2 * np.take_along_axis(contents, asked[..., None], axis=1)
    return Planted(keys, keys, future, _watched(lanes, length, slice(GUARDED, GUARDED + rare)))


def one_sink(lanes: int, length: int, *, seed: int = 0) -> Planted:
    """One short key, behind the first rows, that every query reads at logit 9: most of all attention.

    As in a real model its key is shorter than the others. Who keeps it by its place alone loses it.
    """
    draw = np.random.default_rng([seed, length])
    keys, queries, future = (_background(draw, lanes, n) for n in (length, length, FUTURE))
    keys[:, SINK_AT] = np.eye(1, WIDTH, dtype=np.float32) * 3
    queries[..., 0] = future[..., 0] = 24.0  # times 3, over the root of the width
    return Planted(keys, queries, future, _watched(lanes, length, slice(SINK_AT, SINK_AT + 1)))


def contents_of(keys: Floats) -> npt.NDArray[np.int64]:
    """A number for each different key of a lane ``[lanes, S]``: rows with one number say the same."""
    return np.stack([np.unique(lane, axis=0, return_inverse=True)[1].reshape(-1) for lane in keys])


def _background(draw: np.random.Generator, lanes: int, count: int) -> Floats:
    rows = draw.standard_normal((lanes, count, WIDTH), dtype=np.float32)
    rows[..., 0], rows[..., 1] = 0.0, np.sqrt(8 * COMMON)
    return rows


def _watched(lanes: int, length: int, rows: slice) -> npt.NDArray[np.bool_]:
    watched = np.zeros((lanes, length), bool)
    watched[:, rows] = True
    return watched
