"""Keyformer as functions over one head or many: the adapted definition, token by token, keys as queries."""

from typing import Any, NamedTuple

import mlx.core as mx
from vqx import LayerInfo
from vqx.stream import advance, fp16_bytes

from vqx_keyformer.method import KeyformerConfig, keyformer


class KeyformerState(NamedTuple):
    """Kept rows of one head, oldest first."""

    keys: mx.array | None  # [n, D]
    values: mx.array | None  # [n, Dv]
    scores: mx.array | None  # [n] float32, accumulated mass, free of noise
    gumbel: mx.array | None  # [n] float32, the noise frozen for each row
    positions: mx.array | None  # [n] int32
    n_sink: int
    budget: int
    next_pos: int  # tokens seen
    recent: int
    tau: float | None
    tau_init: float
    tau_end: float
    anneal_steps: int
    seed: int
    head_dim: int


def init_keyformer_state(
    n_sink: int,
    budget: int,
    head_dim: int,
    recent: int = 0,
    tau: float | None = None,
    tau_init: float = 1.0,
    tau_end: float = 2.0,
    anneal_steps: int = 256,
    rope_base: float = 10000.0,
    seed: int = 0,
) -> KeyformerState:
    """An empty head. ``rope_base`` is accepted for compatibility and never used.

    Raises:
        ValueError: as :class:`vqx_keyformer.KeyformerConfig`.
    """
    KeyformerConfig(
        budget=budget,
        n_sink=n_sink,
        recent=recent,
        tau=tau,
        tau_init=tau_init,
        tau_end=tau_end,
        anneal_steps=anneal_steps,
        seed=seed,
    )
    return KeyformerState(
        keys=None,
        values=None,
        scores=None,
        gumbel=None,
        positions=None,
        n_sink=n_sink,
        budget=budget,
        next_pos=0,
        recent=recent,
        tau=tau,
        tau_init=tau_init,
        tau_end=tau_end,
        anneal_steps=anneal_steps,
        seed=seed,
        head_dim=head_dim,
    )


def keyformer_update(state: KeyformerState, new_keys: mx.array, new_values: mx.array) -> KeyformerState:
    """Take S tokens one by one: keys ``[S, D]``, values ``[S, Dv]``.

    Raises:
        ValueError: NaN keys, or shapes that do not fit; ``state`` is as it was.
    """
    keys, values, scores, gumbel, positions, next_pos = keyformer_update_batched(
        state.keys,
        state.values,
        state.scores,
        state.gumbel,
        state.positions,
        new_keys,
        new_values,
        state.n_sink,
        state.budget,
        state.recent,
        state.tau_init,
        state.tau_end,
        state.anneal_steps,
        next_pos=state.next_pos,
        tau=state.tau,
        seed=state.seed,
    )
    return state._replace(
        keys=keys, values=values, scores=scores, gumbel=gumbel, positions=positions, next_pos=next_pos
    )


def keyformer_update_batched(
    keys: mx.array | None,
    values: mx.array | None,
    scores: mx.array | None,
    gumbel: mx.array | None,
    positions: mx.array | None,
    new_keys: mx.array,
    new_values: mx.array,
    n_sink: int,
    budget: int,
    recent: int = 0,
    tau_init: float = 1.0,
    tau_end: float = 2.0,
    anneal_steps: int = 256,
    rope_base: float = 10000.0,
    next_pos: int = 0,
    *,
    tau: float | None = None,
    seed: int = 0,
    layer: int = 0,
    return_indices: bool = False,
) -> tuple[Any, ...]:
    """Take S tokens one by one, all heads at once.

    Args:
        keys, values: ``[*lanes, n, D]``, ``[*lanes, n, Dv]``, or None before the first token.
        scores, gumbel, positions: ``[*lanes, n]``, or None before the first token.
        new_keys, new_values: ``[*lanes, S, D]``, ``[*lanes, S, Dv]``.
        rope_base: accepted for compatibility and never used.
        next_pos: tokens seen so far.
        seed, layer: with the head (the last of ``lanes``) and the position they fix the noise.
        return_indices: also return ``[*lanes, m]`` int32 indices into the old rows followed by the new.

    Returns:
        keys, values, scores, gumbel, positions, (indices,) next_pos.
    """
    config = KeyformerConfig(
        budget=budget,
        n_sink=n_sink,
        recent=recent,
        tau=tau,
        tau_init=tau_init,
        tau_end=tau_end,
        anneal_steps=anneal_steps,
        seed=seed,
    )
    held = {} if scores is None or gumbel is None else {"mass": scores, "noise": gumbel}
    method = keyformer(config, LayerInfo(layer, "keys"))
    kept = advance(method, keys, values, positions, held, new_keys, new_values, next_pos)
    indices = (kept.indices,) if return_indices else ()
    columns = (kept.columns["mass"], kept.columns["noise"])
    seen = next_pos + new_keys.shape[-2]
    return (kept.keys, kept.values, *columns, kept.positions, *indices, seen)


def keyformer_get_kv(state: KeyformerState) -> tuple[mx.array, mx.array]:
    """Kept keys and values; zero rows ``[0, 1]`` before the first update."""
    if state.keys is None or state.values is None:
        return mx.zeros((0, 1)), mx.zeros((0, 1))
    return state.keys, state.values


def keyformer_fp16_bytes(state: KeyformerState) -> int:
    """Bytes of the kept rows in 16 bits."""
    keys, values = keyformer_get_kv(state)
    return fp16_bytes(keys.shape[0], keys.shape[1] + values.shape[1])


def full_keyformer_fp16_bytes(tokens_seen: int, head_dim: int) -> int:
    """Bytes of all rows in 16 bits, had none been evicted."""
    return fp16_bytes(tokens_seen, 2 * head_dim)
