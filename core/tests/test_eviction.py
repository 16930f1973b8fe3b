"""Who goes: the engine's choice against sorting by hand."""

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vqx import Method, Scorer
from vqx.eviction import freed, guarded, safe, survivors, victim, victims
from vqx.ranking import top

NEWEST = 60
SCORES = [math.nan, -math.inf, -1.0, -0.0, 0.0, 0.5, 2.0, math.inf]


def stays(score: list[float], position: list[int], keep: int, n_sink: int, recent: int) -> list[int]:
    """Positions that stay: the protected, then the highest scores, of equals the newest."""

    def rank(row: tuple[float, int]) -> tuple[bool, float, int]:
        value, place = row
        protected = place < n_sink or place > max(position) - recent
        return protected, -math.inf if math.isnan(value) else value, place

    ranked = sorted(zip(score, position, strict=True), key=rank, reverse=True)
    return sorted(place for _, place in ranked[:keep])


@st.composite
def layers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int, int]:
    """Scores and positions ``[1, 2, n]`` in any slot order, with gaps; keep, n_sink and recent."""
    n_sink, recent, others = draw(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(2, 9)))
    n = n_sink + recent + others
    keep = draw(st.integers(n_sink + recent + 1, n - 1))
    score = draw(st.lists(st.sampled_from(SCORES), min_size=2 * n, max_size=2 * n))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    position = []
    for _ in range(2):
        between = n_sink + random.choice(NEWEST - recent - n_sink, others - (recent == 0), replace=False)
        first, last = range(n_sink), range(NEWEST - max(recent, 1) + 1, NEWEST + 1)
        position.append(random.permutation([*first, *between, *last]))
    return np.array(score, np.float32).reshape(1, 2, n), np.array([position], np.int32), keep, n_sink, recent


def kept(score: mx.array, position: mx.array, keep: int) -> mx.array:
    return survivors(top(score, position, keep), position, keep)


def guards(n_sink: int, recent: int, spans: tuple[tuple[int, int], ...] = ()) -> Method:
    return Method(Scorer(score=lambda held: 0.0), budget=1, n_sink=n_sink, recent=recent, spans=spans)


@settings(max_examples=80, deadline=None)
@given(layers())
def test_survivors_are_those_that_sorting_by_hand_keeps(
    layer: tuple[np.ndarray, np.ndarray, int, int, int],
) -> None:
    score, position, keep, n_sink, recent = layer
    places = mx.array(position)
    ranked = guarded(mx.array(score), safe(guards(n_sink, recent), places, NEWEST))
    chosen = np.array(kept(ranked, places, keep))
    for head in range(2):
        left = position[0, head][chosen[0, head]].tolist()
        assert left == stays(score[0, head].tolist(), position[0, head].tolist(), keep, n_sink, recent)


@settings(max_examples=80, deadline=None)
@given(layers())
def test_the_victim_is_the_one_row_that_survivors_leave_out(
    layer: tuple[np.ndarray, np.ndarray, int, int, int],
) -> None:
    score, position, _, n_sink, recent = layer
    places = mx.array(position)
    ranked = guarded(mx.array(score), safe(guards(n_sink, recent), places, NEWEST))
    slot = np.array(victim(ranked, places))
    chosen = np.array(kept(ranked, places, position.shape[2] - 1))
    for head in range(2):
        assert {*chosen[0, head].tolist(), *slot[0, head].tolist()} == set(range(position.shape[2]))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]])
def test_ties_evict_the_oldest_whatever_the_slot_order(order: list[int]) -> None:
    position = mx.array(order, mx.int32).reshape(1, 1, 4)
    alike = mx.zeros((1, 1, 4))
    assert order[victim(alike, position).item()] == 0
    assert [order[slot] for slot in kept(alike, position, 2).flatten().tolist()] == [
        2,
        3,
    ]


def test_a_tie_at_the_threshold_keeps_the_newest_of_it() -> None:
    position = mx.arange(6, dtype=mx.int32).reshape(1, 1, 6)
    score = mx.array([5.0, 1.0, 1.0, 0.0, 1.0, 7.0]).reshape(1, 1, 6)
    assert kept(score, position, 4).flatten().tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_victims_are_the_rows_that_survivors_leave_out(count: int) -> None:
    random = np.random.default_rng(count)
    score = mx.array(random.integers(3, size=(2, 1, 12)).astype(np.float32))
    age = mx.array(random.permuted(np.tile(np.arange(12), (2, 1, 1)), axis=-1).astype(np.int32))
    both = mx.concatenate([victims(score, age, count), kept(score, age, 12 - count)], axis=-1)
    assert np.array_equal(np.sort(np.array(both), axis=-1), np.tile(np.arange(12), (2, 1, 1)))


def test_heads_choose_apart() -> None:
    position = mx.broadcast_to(mx.arange(3, dtype=mx.int32), (1, 2, 3))
    score = mx.array([[[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]])
    assert victim(score, position).tolist() == [[[0], [2]]]
    assert kept(score, position, 2).tolist() == [[[1, 2], [0, 1]]]


def test_no_score_outranks_a_sink_or_a_recent_row() -> None:
    position = mx.arange(5, dtype=mx.int32).reshape(1, 1, 5)
    score = mx.array([-mx.inf, mx.inf, mx.inf, mx.inf, math.nan]).reshape(1, 1, 5)
    ranked = guarded(score, safe(guards(1, 1), position, 4))
    assert kept(ranked, position, 2).flatten().tolist() == [0, 4]
    assert victim(ranked, position).item() == 1


def test_scores_in_16_bits_are_ranked_in_32() -> None:
    score = mx.array([1.0, 65504.0], mx.float16)
    assert guarded(score, mx.array([False, False])).dtype == mx.float32


def test_large_numbers_of_rows_are_ranked_exactly() -> None:
    random = np.random.default_rng(0)
    n, keep = 5000, 1024
    score = random.integers(0, 50, (1, 1, n)).astype(np.float32)  # many ties
    position = random.permutation(n).astype(np.int32).reshape(1, 1, n)
    chosen = np.array(kept(mx.array(score), mx.array(position), keep))[0, 0]
    assert position[0, 0][chosen].tolist() == stays(score[0, 0].tolist(), position[0, 0].tolist(), keep, 0, 0)


def test_no_score_outranks_a_protected_span() -> None:
    position = mx.arange(8, dtype=mx.int32).reshape(1, 1, 8)
    ranked = guarded(mx.arange(8.0).reshape(1, 1, 8), safe(guards(0, 1, ((1, 3), (4, 5))), position, 7))
    assert kept(ranked, position, 4).flatten().tolist() == [1, 2, 4, 7]


@pytest.mark.parametrize("keep", [1, 4, 9, 11])
def test_rows_behind_the_first_take_the_slots_of_those_that_go(keep: int) -> None:
    random = np.random.default_rng(keep)
    stay = random.permuted(np.tile(np.arange(12) < keep, (2, 3, 1)), axis=-1)
    slots = np.array(freed(mx.array(stay), keep))
    found = np.tile(np.arange(12), (2, 3, 1))
    np.put_along_axis(found, slots, found[..., keep:].copy(), axis=-1)
    assert slots.shape == (2, 3, 12 - keep)
    for lane in np.ndindex(2, 3):
        assert {*found[*lane, :keep]} == {*np.flatnonzero(stay[lane])}
