"""H2O as functions over one head or many: the adapted definition, token by token, keys as queries."""

from typing import Any, NamedTuple

import mlx.core as mx
from vqx.stream import advance, fp16_bytes

from vqx_h2o.method import H2OConfig, h2o


class H2OState(NamedTuple):
    """Kept rows of one head, oldest first."""

    keys: mx.array | None  # [n, D]
    values: mx.array | None  # [n, Dv]
    scores: mx.array | None  # [n] float32, accumulated mass
    positions: mx.array | None  # [n] int32
    n_sink: int
    budget: int
    next_pos: int  # tokens seen
    grace: int
    decay: float
    recent: int
    head_dim: int


def init_h2o_state(
    n_sink: int,
    budget: int,
    head_dim: int,
    rope_base: float = 10000.0,
    grace: int = 0,
    decay: float = 1.0,
    recent: int = 0,
) -> H2OState:
    """An empty head. ``rope_base`` is accepted for compatibility and never used.

    Raises:
        ValueError: as :class:`vqx_h2o.H2OConfig`.
    """
    _config(budget, n_sink, recent, grace, decay)
    return H2OState(None, None, None, None, n_sink, budget, 0, grace, decay, recent, head_dim)


def h2o_update(state: H2OState, new_keys: mx.array, new_values: mx.array) -> H2OState:
    """Take S tokens one by one: keys ``[S, D]``, values ``[S, Dv]``.

    Raises:
        ValueError: NaN keys, or shapes that do not fit; ``state`` is as it was.
    """
    keys, values, scores, positions, next_pos = h2o_update_batched(
        state.keys,
        state.values,
        state.scores,
        state.positions,
        new_keys,
        new_values,
        state.n_sink,
        state.budget,
        next_pos=state.next_pos,
        grace=state.grace,
        decay=state.decay,
        recent=state.recent,
    )
    return state._replace(keys=keys, values=values, scores=scores, positions=positions, next_pos=next_pos)


def h2o_update_batched(
    keys: mx.array | None,
    values: mx.array | None,
    scores: mx.array | None,
    positions: mx.array | None,
    new_keys: mx.array,
    new_values: mx.array,
    n_sink: int,
    budget: int,
    rope_base: float = 10000.0,
    next_pos: int = 0,
    grace: int = 0,
    decay: float = 1.0,
    recent: int = 0,
    *,
    return_indices: bool = False,
) -> tuple[Any, ...]:
    """Take S tokens one by one, all heads at once.

    Args:
        keys, values, scores, positions: ``[*lanes, n, D]``, ``[*lanes, n, Dv]``, ``[*lanes, n]`` twice, or
            None before the first token.
        new_keys, new_values: ``[*lanes, S, D]``, ``[*lanes, S, Dv]``.
        rope_base: accepted for compatibility and never used.
        next_pos: tokens seen so far.
        return_indices: also return ``[*lanes, m]`` int32 indices into the old rows followed by the new.

    Returns:
        keys, values, scores, positions, (indices,) next_pos.
    """
    config = _config(budget, n_sink, recent, grace, decay)
    held = {} if scores is None else {"mass": scores}
    method = h2o(config, itself=False)
    kept = advance(method, keys, values, positions, held, new_keys, new_values, next_pos)
    indices = (kept.indices,) if return_indices else ()
    seen = next_pos + new_keys.shape[-2]
    return (kept.keys, kept.values, kept.columns["mass"], kept.positions, *indices, seen)


def _config(budget: int, n_sink: int, recent: int, grace: int, decay: float) -> H2OConfig:
    """The adapted definition: the mass itself, not divided."""
    return H2OConfig(budget=budget, n_sink=n_sink, recent=recent, grace=grace, decay=decay, normalise=None)


def h2o_get_kv(state: H2OState) -> tuple[mx.array, mx.array]:
    """Kept keys and values; zero rows ``[0, 1]`` before the first update."""
    if state.keys is None or state.values is None:
        return mx.zeros((0, 1)), mx.zeros((0, 1))
    return state.keys, state.values


def h2o_fp16_bytes(state: H2OState) -> int:
    """Bytes of the kept rows in 16 bits."""
    keys, values = h2o_get_kv(state)
    return fp16_bytes(keys.shape[0], keys.shape[1] + values.shape[1])


def full_h2o_fp16_bytes(tokens_seen: int, head_dim: int) -> int:
    """Bytes of all rows in 16 bits, had none been evicted."""
    return fp16_bytes(tokens_seen, 2 * head_dim)
