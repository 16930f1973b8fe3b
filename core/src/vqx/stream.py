"""Token by token with keys as queries, as one pure function: the adapted definitions without a model.

Leading axes are free: ``[n, D]`` is one head, ``[H, n, D]`` a layer, ``[B, H, n, D]`` a batch.
"""

from collections.abc import Mapping
from typing import NamedTuple

import mlx.core as mx

from vqx.scorers import Arrivals, Method
from vqx.state.replay import replay
from vqx.state.rows import Rows, pick


class Kept(NamedTuple):
    """Rows kept, oldest first, with the leading axes of what was given."""

    keys: mx.array  # [*lanes, m, D]
    values: mx.array  # [*lanes, m, Dv]
    positions: mx.array  # [*lanes, m] int32
    columns: Mapping[str, mx.array]  # each [*lanes, m] float32
    indices: mx.array  # [*lanes, m] int32, into the old rows followed by the new ones


def advance(
    method: Method,
    keys: mx.array | None,
    values: mx.array | None,
    positions: mx.array | None,
    columns: Mapping[str, mx.array],
    new_keys: mx.array,
    new_values: mx.array,
    start: int,
) -> Kept:
    """Take S new rows one by one; more than ``method.budget`` rows never remain.

    Args:
        method: its scorer is asked with keys as queries, scaled by 1 / sqrt(D).
        keys, values, positions, columns: the rows held, or None and ``{}`` before the first.
        new_keys: ``[*lanes, S, D]``.
        new_values: ``[*lanes, S, Dv]``.
        start: tokens seen so far, the position of the first new row.

    Raises:
        ValueError: NaN keys, or shapes that do not fit; the rows given are as they were.
    """
    _check(keys, new_keys, new_values)
    lanes, added = new_keys.shape[:-2], new_keys.shape[-2]
    shape = (1,) * (2 - len(lanes)) + lanes
    laid_out = [array.reshape(*shape, *array.shape[-2:]) for array in (new_keys, new_values)]
    arrivals = Arrivals(laid_out[0], laid_out[1], start)
    fresh = Rows(
        arrivals.keys,
        arrivals.values,
        mx.broadcast_to(mx.arange(start, start + added, dtype=mx.int32), (*shape, added)),
        {name: mx.array(column) for name, column in method.scorer.init(arrivals).items()},
    )
    rows, held = fresh, 0
    if keys is not None and values is not None and positions is not None:
        held = keys.shape[-2]
        rows = Rows(
            mx.concatenate([keys.reshape(*shape, *keys.shape[-2:]), fresh.keys], axis=2),
            mx.concatenate([values.reshape(*shape, *values.shape[-2:]), fresh.values], axis=2),
            mx.concatenate([positions.reshape(*shape, held), fresh.position], axis=2),
            {
                name: mx.concatenate([columns[name].reshape(*shape, held), column], axis=2)
                for name, column in fresh.columns.items()
            },
        )
    earlier = min(max(method.scorer.window - 1, 0), held)
    queries = rows.keys[:, :, None, held - earlier :]
    slots, kept_columns = replay(
        method, rows, queries, new=added, start=start, scale=new_keys.shape[-1] ** -0.5
    )
    kept = pick(rows, slots)

    def out(array: mx.array, trailing: int) -> mx.array:
        return array.reshape(*lanes, *array.shape[array.ndim - trailing :])

    return Kept(
        out(kept.keys, 2),
        out(kept.values, 2),
        out(kept.position, 1),
        {name: out(column, 1) for name, column in kept_columns.items()},
        out(slots, 1),
    )


def ranks(keys: mx.array | None) -> mx.array | None:
    """Positions 0 to n - 1 for rows whose places are not known: ``[*lanes, n]`` int32."""
    if keys is None:
        return None
    return mx.broadcast_to(mx.arange(keys.shape[-2], dtype=mx.int32), keys.shape[:-1])


def fp16_bytes(tokens: int, width: int) -> int:
    """Bytes of ``tokens`` rows of keys and values in 16 bits, where both together are ``width`` wide."""
    return 2 * tokens * width


def _check(keys: mx.array | None, new_keys: mx.array, new_values: mx.array) -> None:
    if not 2 <= new_keys.ndim <= 4 or new_keys.shape[:-1] != new_values.shape[:-1]:
        raise ValueError(
            f"new keys {new_keys.shape} and values {new_values.shape} do not fit each other:"
            " give [S, D], [H, S, D] or [B, H, S, D] for both"
        )
    if keys is not None and (keys.shape[:-2], keys.shape[-1]) != (new_keys.shape[:-2], new_keys.shape[-1]):
        raise ValueError(f"new keys {new_keys.shape} do not fit the rows held, {keys.shape}")
    if mx.any(mx.isnan(new_keys)).item():
        raise ValueError("new keys hold NaN: nothing was stored; check the weights and the dtype")
