"""MorphKV as functions over one head or many: the adapted definition, token by token, keys as queries."""

from typing import Any, NamedTuple

import mlx.core as mx
from vqx.stream import advance, fp16_bytes, ranks

from vqx_morphkv.method import MorphKVConfig, morphkv


class MorphKVState(NamedTuple):
    """Kept rows of one head, oldest first."""

    keys: mx.array | None  # [n, D]
    values: mx.array | None  # [n, Dv]
    pos: int  # tokens seen
    n_sink: int
    budget: int
    window: int
    head_dim: int


def init_morphkv_state(n_sink: int, budget: int, head_dim: int, window: int = 8) -> MorphKVState:
    """An empty head.

    Raises:
        ValueError: as :class:`vqx_morphkv.MorphKVConfig`.
    """
    MorphKVConfig(budget=budget, n_sink=n_sink, window=window)
    return MorphKVState(None, None, 0, n_sink, budget, window, head_dim)


def morphkv_update(state: MorphKVState, new_keys: mx.array, new_values: mx.array) -> MorphKVState:
    """Take S tokens one by one: keys ``[S, D]``, values ``[S, Dv]``.

    Raises:
        ValueError: NaN keys, or shapes that do not fit; ``state`` is as it was.
    """
    keys, values = morphkv_update_batched(
        state.keys, state.values, new_keys, new_values, state.n_sink, state.budget, state.window
    )
    return state._replace(keys=keys, values=values, pos=state.pos + new_keys.shape[0])


def morphkv_update_batched(
    keys: mx.array | None,
    values: mx.array | None,
    new_keys: mx.array,
    new_values: mx.array,
    n_sink: int,
    budget: int,
    window: int,
    *,
    return_indices: bool = False,
) -> tuple[Any, ...]:
    """Take S tokens one by one, all heads at once.

    Args:
        keys, values: ``[*lanes, n, D]``, ``[*lanes, n, Dv]``, or None before the first token.
        new_keys, new_values: ``[*lanes, S, D]``, ``[*lanes, S, Dv]``.
        return_indices: also return ``[*lanes, m]`` int32 indices into the old rows followed by the new.

    Returns:
        keys, values (, indices).
    """
    config = MorphKVConfig(budget=budget, n_sink=n_sink, window=window)
    method = morphkv(config, causal=False)
    held = 0 if keys is None else keys.shape[-2]
    # sinks are the oldest rows and the window the newest: ranks say as much as positions
    kept = advance(method, keys, values, ranks(keys), {}, new_keys, new_values, held)
    return (kept.keys, kept.values, kept.indices) if return_indices else (kept.keys, kept.values)


def morphkv_get_kv(state: MorphKVState) -> tuple[mx.array, mx.array]:
    """Kept keys and values; zero rows ``[0, 1]`` before the first update."""
    if state.keys is None or state.values is None:
        return mx.zeros((0, 1)), mx.zeros((0, 1))
    return state.keys, state.values


def morphkv_fp16_bytes(state: MorphKVState) -> int:
    """Bytes of the kept rows in 16 bits."""
    keys, values = morphkv_get_kv(state)
    return fp16_bytes(keys.shape[0], keys.shape[1] + values.shape[1])


def full_morphkv_fp16_bytes(tokens_seen: int, head_dim: int) -> int:
    """Bytes of all rows in 16 bits, had none been evicted."""
    return fp16_bytes(tokens_seen, 2 * head_dim)
