"""TOVA as functions over one head or many: the adapted definition, token by token, keys as queries."""

from typing import Any, Literal, NamedTuple

import mlx.core as mx
from vqx.stream import advance, fp16_bytes, ranks

from vqx_tova.method import TovaConfig, tova


class TovaState(NamedTuple):
    """Kept rows of one head, oldest first."""

    keys: mx.array | None  # [n, D]
    values: mx.array | None  # [n, Dv]
    pos: int  # tokens seen
    n_sink: int
    budget: int
    head_dim: int
    keep_newest: bool


def init_tova_state(n_sink: int, budget: int, head_dim: int, keep_newest: bool = True) -> TovaState:
    """An empty head.

    Raises:
        ValueError: as :class:`vqx_tova.TovaConfig`.
    """
    TovaConfig(budget=budget, n_sink=n_sink, keep_newest=keep_newest)
    return TovaState(None, None, 0, n_sink, budget, head_dim, keep_newest)


def tova_update(state: TovaState, new_keys: mx.array, new_values: mx.array) -> TovaState:
    """Take S tokens one by one: keys ``[S, D]``, values ``[S, Dv]``.

    Raises:
        ValueError: NaN keys, or shapes that do not fit; ``state`` is as it was.
    """
    keys, values = tova_update_batched(
        state.keys,
        state.values,
        new_keys,
        new_values,
        state.n_sink,
        state.budget,
        keep_newest=state.keep_newest,
    )
    return state._replace(keys=keys, values=values, pos=state.pos + new_keys.shape[0])


def tova_update_batched(
    keys: mx.array | None,
    values: mx.array | None,
    new_keys: mx.array,
    new_values: mx.array,
    n_sink: int,
    budget: int,
    *,
    heads: Literal["layer", "each"] = "each",
    keep_newest: bool = True,
    return_indices: bool = False,
) -> tuple[Any, ...]:
    """Take S tokens one by one, all heads at once.

    Args:
        keys, values: ``[*lanes, n, D]``, ``[*lanes, n, Dv]``, or None before the first token.
        new_keys, new_values: ``[*lanes, S, D]``, ``[*lanes, S, Dv]``.
        heads: ``each`` head ranks alone, or one kept set per ``layer`` (mean over the last lane axis).
        keep_newest: shield the newest row.
        return_indices: also return ``[*lanes, m]`` int32 indices into the old rows followed by the new.

    Returns:
        keys, values (, indices).
    """
    method = tova(TovaConfig(budget=budget, n_sink=n_sink, heads=heads, keep_newest=keep_newest))
    held = 0 if keys is None else keys.shape[-2]
    # sinks are the oldest rows and the newest row the last: ranks say as much as positions
    kept = advance(method, keys, values, ranks(keys), {}, new_keys, new_values, held)
    return (kept.keys, kept.values, kept.indices) if return_indices else (kept.keys, kept.values)


def tova_get_kv(state: TovaState) -> tuple[mx.array, mx.array]:
    """Kept keys and values; zero rows ``[0, 1]`` before the first update."""
    if state.keys is None or state.values is None:
        return mx.zeros((0, 1)), mx.zeros((0, 1))
    return state.keys, state.values


def tova_fp16_bytes(state: TovaState) -> int:
    """Bytes of the kept rows in 16 bits."""
    keys, values = tova_get_kv(state)
    return fp16_bytes(keys.shape[0], keys.shape[1] + values.shape[1])


def full_tova_fp16_bytes(tokens_seen: int, head_dim: int) -> int:
    """Bytes of all rows in 16 bits, had none been evicted."""
    return fp16_bytes(tokens_seen, 2 * head_dim)
