"""Rows in buffers with room, against a list of rows."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vqx.state.rows import (
    STEP,
    Rows,
    append,
    append_bare,
    begin,
    capacity_for,
    filled,
    move,
    overwrite,
    pick,
    reserve,
)

SHAPE = (2, 3)  # B, H


def arriving(start: int, length: int) -> Rows:
    """Rows whose every number tells batch, head and position."""
    lane = np.arange(6).reshape(*SHAPE, 1) * 1000
    position = np.broadcast_to(np.arange(start, start + length), (*SHAPE, length))
    told = (lane + position).astype(np.float32)
    keys, values = np.repeat(told[..., None], 4, 3), np.repeat(-told[..., None], 5, 3)
    return Rows(
        mx.array(keys), mx.array(values), mx.array(position.astype(np.int32)), {"mass": mx.array(told)}
    )


def told(rows: Rows) -> list[np.ndarray]:
    """What every part of the rows says, as ``[B, H, n]`` numbers that must agree."""
    keys, values = filled(rows)
    lane = mx.arange(6).reshape(*SHAPE, 1) * 1000
    return [np.array(a) for a in (keys[..., -1], -values[..., 0], rows.position + lane, rows.columns["mass"])]


def agreed(rows: Rows) -> np.ndarray:
    first, *others = told(rows)
    for other in others:
        np.testing.assert_array_equal(first, other)
    return first


def test_the_first_rows_keep_their_widths_and_types() -> None:
    for length in (3, STEP):
        new = arriving(0, length)
        rows = begin(new._replace(keys=new.keys.astype(mx.bfloat16)))
        assert rows.keys.shape == (*SHAPE, STEP, 4)
        assert rows.values.shape == (*SHAPE, STEP, 5)
        assert rows.keys.dtype == mx.bfloat16
        np.testing.assert_array_equal(np.array(filled(rows)[1]), np.array(new.values))
        assert rows.length == length


def test_a_buffer_grows_by_whole_steps_and_then_takes_rows_in_place() -> None:
    rows = begin(arriving(0, 1))
    assert rows.keys.shape[2] == STEP
    full = append(rows, arriving(1, STEP - 1))
    assert full.keys.shape[2] == STEP
    assert append(full, arriving(STEP, 1)).keys.shape[2] == 2 * STEP
    assert reserve(full, STEP).keys is full.keys


def test_no_room_is_made_past_the_most_rows_there_may_be() -> None:
    rows = begin(arriving(0, 3), bound=24)
    assert rows.keys.shape[2] == 24
    assert append(rows, arriving(3, 30), bound=24).keys.shape[2] == 33
    assert begin(arriving(0, 3), bound=10**6).keys.shape[2] == STEP


@pytest.mark.parametrize(
    ("batch", "rows", "whole"),
    [
        (1, 513, False),
        (1, 8193, False),
        (1, 16385, True),
        (8, 2049, False),
        (8, 8193, True),
        (16, 2049, False),
        (16, 3073, True),
    ],
)
def test_on_cuda_much_to_read_is_held_in_whole_steps_and_little_is_not(
    batch: int, rows: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 heads of 64 channels of 2 bytes: which of MLX's two attentions reads them hangs on it."""
    keys = mx.zeros((batch, 8, 1, 64), mx.float16)
    assert capacity_for(rows, keys) == rows
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert capacity_for(rows, keys) == (-(-rows // STEP) * STEP if whole else rows)
    assert capacity_for(512, keys[:1]) == 513


def test_what_attention_reads_is_never_longer_than_what_is_filled() -> None:
    rows = begin(arriving(0, 5))
    assert [a.shape[2] for a in filled(rows)] == [5, 5]


def test_picked_rows_leave_room_for_those_to_come() -> None:
    rows = begin(arriving(0, 9))
    slots = mx.broadcast_to(mx.array([7, 0, 3], mx.int32), (*SHAPE, 3))
    rows = pick(rows, slots, room=2)
    assert rows.keys.shape[2] == 5
    assert rows.position.shape[2] == 3
    assert append(rows, arriving(9, 2)).keys.shape[2] == 5
    assert agreed(append(rows, arriving(9, 2)))[0, 0].tolist() == [7, 0, 3, 9, 10]


def test_bare_rows_are_filled_in_place_and_the_rows_given_stay_as_they_were() -> None:
    rows = begin(arriving(0, 5))
    longer = rows
    for start in (5, 6):
        new = arriving(start, 1)
        longer = append_bare(longer, new.keys, new.values)
    assert (rows.length, longer.length, longer.position.shape[2], longer.keys.shape[2]) == (5, 7, 5, STEP)
    lane = np.arange(6).reshape(*SHAPE, 1) * 1000
    for held, sign in zip(filled(longer), (1, -1), strict=True):
        assert np.array_equal(np.array(held[..., 0]), sign * (lane + np.arange(7)))
    assert not rows.keys[:, :, 5:].any()


def test_rows_that_move_take_all_with_them() -> None:
    rows = begin(arriving(0, 8))
    slots = mx.broadcast_to(mx.array([1, 6, 0], mx.int32), (*SHAPE, 3))  # row 6 goes
    moved = move(rows, slots)
    assert moved.keys.shape == rows.keys.shape
    assert agreed(moved)[0, 0].tolist() == [7, 5, 2, 3, 4]


@st.composite
def histories(draw: st.DrawFn) -> Sequence[tuple[str, int]]:
    return draw(
        st.lists(st.tuples(st.sampled_from(["append", "pick", "overwrite"]), st.integers(1, 6)), max_size=12)
    )


@settings(max_examples=40, deadline=None)
@given(histories(), st.integers(0, 2**32 - 1))
def test_any_history_leaves_what_a_plain_array_would_hold(
    history: Sequence[tuple[str, int]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows, start = begin(arriving(0, 4)), 4
    model = agreed(rows)
    for what, count in history:
        held = model.shape[2]
        new = arriving(start, count if what == "append" else 1)
        incoming = np.array(new.columns["mass"])
        if what == "append":
            rows, start = append(rows, new), start + count
            model = np.concatenate([model, incoming], axis=2)
        elif what == "pick":
            order = random.permuted(np.broadcast_to(np.arange(held), model.shape), axis=2)
            slots = order[..., : max(1, held - count)].astype(np.int32)
            rows = pick(rows, mx.array(slots), room=count)
            model = np.take_along_axis(model, slots, axis=2)
        else:
            slot = random.integers(0, held, (*SHAPE, 1)).astype(np.int32)
            rows, start = overwrite(rows, mx.array(slot), new), start + 1
            model = model.copy()
            np.put_along_axis(model, slot, incoming, axis=2)
        np.testing.assert_array_equal(agreed(rows), model)
