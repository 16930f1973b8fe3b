"""What attention showed of the model's queries: whether a cache can use it, and what stays to be said."""

from typing import Any

import mlx.core as mx

from vqx.state.layer import Layer, Plan, widths


def unusable(plan: Plan, layer: Layer, keys: mx.array, mask: Any) -> tuple[str, bool]:
    """Why the queries of the forward under way cannot be used (empty: they can), and whether they go in by
    their logits, since the rows held cannot repeat these.

    Args:
        keys: ``[B, H, n, D]``, as attention reads them.
        mask: None, ``"causal"``, or an array: booleans, or numbers that are added to the logits.
    """
    held, method = layer.rows.keys, plan.method
    numbers = isinstance(mask, mx.array) and mask.dtype != mx.bool_
    logits = numbers or (keys.shape[1], keys.shape[3]) != (held.shape[1], widths(plan, layer.rows)[0])
    if held.shape[1] not in (1, keys.shape[1]):
        return f"reads keys of {keys.shape[1]} heads that it makes from the {held.shape[1]} held", logits
    if logits and method.scorer.note is not None:
        return "attends as the rows held alone cannot repeat, which this method needs", logits
    if method.floor is not None and (logits or isinstance(mask, mx.array)):
        return "masks its rows by itself, which heads that share a budget need to", logits
    if logits and plan.options.cadence == "token":
        return "attends as the rows held alone cannot repeat, which cadence='token' needs", logits
    return "", logits


def check(number: int, unseen: str, nan: mx.array | None, length: int) -> None:
    """Refuse to go on after a forward whose queries were not shown, or whose keys held NaN.

    Args:
        number: the layer's.
        unseen: why its queries could not be used; empty where they were.
        nan: whether a key of the last forward, of ``length`` tokens, was NaN.

    Raises:
        ValueError: says which.
    """
    if unseen:
        raise ValueError(
            f"layer {number}: the model's queries were not seen, since it {unseen};"
            " build the cache with queries='centred-keys'"
        )
    if nan is not None and nan.item():
        raise ValueError(
            f"layer {number}: keys of the last {length} tokens hold NaN;"
            " the model's output is not usable: check its weights and dtype"
        )
