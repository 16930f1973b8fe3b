"""Caches are tried on their model before anyone gets them: what cannot be right is refused in words.

A forward builds a graph and nothing is evaluated, so a trial takes some
hundredths of a second, whatever the model's size. Only heads that share a budget are tried in earnest.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from vqx.options import Options
from vqx.scorers import WHOLE, Method, Scorer
from vqx.state.batch import EvictingBatch
from vqx.state.cache import EvictingCache
from vqx.state.lanes import CannotShare, one_lane
from vqx.state.packing import Packing, packing_of
from vqx.state.reversible import ReversibleCache
from vqx.state.settling import settle

_KEEPS_ALL = Method(Scorer(score=lambda held: 0.0), budget=2**30)


def hidden_queries(model: nn.Module, fresh: Callable[[], list[Any]]) -> dict[int, str]:
    """Run a prompt of two tokens and one of one: the layers whose queries cannot be used, and why."""
    hidden: dict[int, str] = {}
    for length in (2, 1):
        caches = fresh()
        model(mx.ones((1, length), mx.int32), cache=caches)
        hidden |= {cache.number: cache.unseen for cache in _evicting(caches) if cache.unseen}
    return hidden


def check_budgets(model: nn.Module, fresh: Callable[[], list[Any]]) -> None:
    """Refuse budgets that differ where the model makes one mask, from one layer's rows, for all layers.

    Raises:
        ValueError: says so.
    """
    budgets = sorted({rows for cache in _evicting(fresh()) for rows in _budgets(cache.plan.method)})
    if len(budgets) < 2:
        return
    shapes, caches = fresh(), fresh()
    model(mx.ones((1, 2), mx.int32), cache=shapes)
    for place, shown in enumerate(_evicting(shapes)):
        if shown.layer is not None:
            method = shown.plan.method
            rows = 1 + (budgets.index(method.budget) if method.share is None else place % 2)
            held = (shown.layer.rows.keys, shown.layer.rows.values)
            uneven = EvictingCache(_KEEPS_ALL, Options(queries="keys"), number=shown.number)
            uneven.update_and_fetch(*(mx.zeros((*a.shape[:2], rows, a.shape[3]), a.dtype) for a in held))
            caches[shown.number] = uneven
    try:
        model(mx.ones((1, 2), mx.int32), cache=caches)
    except ValueError as error:
        raise ValueError(
            f"budget: {type(model).__module__} masks all layers as its first one, so every layer must keep as"
            " many rows; give one budget for all, and a method that treats all layers alike"
        ) from error


def check_lanes(model: nn.Module, fresh: Callable[[], list[Any]]) -> None:
    """Refuse heads that share a budget where model or method reads their rows in a way of its own.

    With nothing evicted, logits must be the same whether heads stand apart or in one lane; then one layer
    is cut, by a score of attention that each head has for itself.

    Raises:
        ValueError: says so.
    """
    apart, together = fresh(), fresh()
    if all(cache.plan.method.floor is None for cache in _evicting(apart)):
        return
    for cache in (*_evicting(apart), *_evicting(together)):
        method = cache.plan.method._replace(budget=_KEEPS_ALL.budget, share=None)
        cache.plan, cache.allotment = cache.plan._replace(method=method), None
    for caches in (apart, together):
        model(mx.array([[1, 2, 3, 4, 5]]), cache=caches)
    for cache in _evicting(together):
        if cache.layer is not None and cache.plan.across is not None and cache.layer.rows.keys.shape[1] == 1:
            raise ValueError(
                f"{type(model).__module__} is split over as many processes as a layer has heads: heads that"
                " share a budget need two of them in each process; use fewer processes, or the method inside"
                " alone"
            )
        if cache.layer is not None and cache.layer.rows.position.shape[1] > 1:
            rows = cache.layer.rows
            cache.layer = cache.layer._replace(rows=one_lane(rows), heads=rows.position.shape[1])
    for tokens in ([6, 7, 8], [9]):
        right, read = (model(mx.array([tokens]), cache=caches) for caches in (apart, together))
        # another order of additions, in the model's own dtype, is all that may differ
        if not mx.max(mx.abs(right - read)) <= 0.03 * mx.max(mx.abs(right)):
            raise ValueError(
                f"{type(model).__module__} reads the rows of a layer in a way of its own, so its heads cannot"
                " share a budget; use the method inside alone"
            )
    _check_score(next(cache for cache in _evicting(together) if cache.in_lanes))


def _check_score(cache: EvictingCache) -> None:
    """Refuse a score that heads cannot share, before rows are cut by it."""
    if cache.layer is None:
        return
    method = cache.plan.method._replace(budget=1)
    try:
        settle(cache.plan._replace(method=method), cache.layer, room=2)
    except CannotShare:
        raise
    except ValueError:
        pass  # of the method, which may want something before its first cut


def packings_for(
    model: nn.Module, fresh: Callable[[], list[Any]], bits: int, group_size: int
) -> dict[int, Packing]:
    """How the rows of each layer are held in fewer bits, by its number.

    Raises:
        ValueError: channels that make no whole groups.
    """
    caches = fresh()
    model(mx.ones((1, 2), mx.int32), cache=caches)
    held = {cache.number: cache.layer.rows for cache in _evicting(caches) if cache.layer is not None}
    return {number: packing_of(bits, group_size, rows.keys, rows.values) for number, rows in held.items()}


def check_evicts(model: nn.Module) -> None:
    """Let the caches that are attached to a model evict once, on rows of zeros: what fails, fails now.

    Raises:
        ValueError: as the method does.
    """

    def deciding() -> list[Any]:
        """The caches that methods run on: those of which tokens can be taken back have them inside."""
        return [cache.policy if isinstance(cache, ReversibleCache) else cache for cache in model.make_cache()]

    empty = _tried(model, deciding)
    if empty is not None:
        _filled(*empty, more=1)


def unbatched(model: nn.Module, fresh: Callable[[], list[Any]]) -> str:
    """Why sequences cannot be read in one batch with these caches; empty where they can.

    The method is tried on rows of zeros at two lengths, the model on as many sequences as no other size is.
    """
    empty = _tried(model, fresh)
    if empty is None:
        return "no layer of the model holds rows of its own"
    try:
        batch = EvictingBatch([_filled(*empty, more=more) for more in (1, 2)])
        for _ in range(2):
            _read(batch, *empty[1:], length=1)
    except (AttributeError, TypeError, ValueError) as error:
        return str(error)
    many, name = empty[2].shape[1] + 1, type(model).__module__
    try:
        caches = [
            _together(each) for each in zip(*(_evicting_two(fresh()) for _ in range(many)), strict=True)
        ]
        for length, lengths in ((3, [3] + [1] * (many - 1)), (1, [1] * many)):
            for cache in caches:
                cache.prepare(lengths=lengths, right_padding=[length - own for own in lengths])
            model(mx.ones((many, length), mx.int32), cache=caches)
            for cache in caches:
                cache.finalize()
    except AttributeError:
        return f"{name} has layers of another kind, whose caches mlx-lm reads in no batch"
    except (TypeError, ValueError):
        return f"masks or positions of {name} do not fit sequences, or layers, of different numbers of rows"
    return ""


def _evicting_two(caches: list[Any]) -> list[Any]:
    """The caches with two rows left in all layers that evict, while the others go on to hold them all.

    Where layers may keep other numbers of rows, every second one keeps three.
    """
    held = _evicting(caches)
    uneven = len({rows for cache in held for rows in _budgets(cache.plan.method)}) > 1
    for place, cache in enumerate(held):
        method = _KEEPS_ALL._replace(budget=2 + (place % 2 if uneven else 0))
        cache.plan, cache.allotment = cache.plan._replace(method=method), None
    return caches


def _together(caches: Sequence[Any]) -> Any:
    """The cache of a batch; ours without asking whether they can be, which is what is tried."""
    first = caches[0]
    return EvictingBatch(caches) if isinstance(first, EvictingCache) else first.merge([*caches])


def _tried(
    model: nn.Module, fresh: Callable[[], list[Any]]
) -> tuple[EvictingCache, mx.array, mx.array, mx.array] | None:
    """The cache that is full first, empty, with a token's queries, keys and values; None: none holds rows.

    Where layers share their rows, each has the fewest that it may have.
    """
    caches = fresh()
    model(mx.ones((1, 1), mx.int32), cache=caches)
    seen = [cache for cache in _evicting(caches) if cache.layer is not None]
    if not seen:
        return None
    for cache in seen:
        if cache.allotment is not None:
            cache.allot(0, cache.allotment.method(cache.number, cache.allotment.share.least))
    cache = min(seen, key=lambda cache: cache.plan.method.budget)
    keys, values = (mx.zeros_like(array) for array in cache.keys_and_values())
    shown = cache.layer.seen if cache.layer is not None else None
    heads = keys.shape[1] if shown is None else shown.queries.shape[1] * shown.queries.shape[2]
    return cache.another(None), mx.zeros((1, heads, 1, keys.shape[3]), keys.dtype), keys, values


def _filled(
    empty: EvictingCache, queries: mx.array, keys: mx.array, values: mx.array, *, more: int
) -> EvictingCache:
    """A cache that read ``more`` tokens than it may keep, and then three one by one."""
    cache, plan = empty.another(None), empty.plan
    # a prompt that is replayed token by token would be worked through in earnest
    cache.plan = plan._replace(options=replace(plan.options, cadence="block"))
    full = 0 if plan.method.budget == WHOLE else plan.method.budget + plan.options.interval
    for length in (full + more, 1, 1, 1):
        _read(cache, queries, keys, values, length=length)
    return cache


def _read(cache: Any, queries: mx.array, keys: mx.array, values: mx.array, *, length: int) -> None:
    """One forward over zeros."""
    batch = len(cache) if isinstance(cache, EvictingBatch) else 1
    asked, *new = (
        mx.broadcast_to(array, (batch, array.shape[1], length, array.shape[3]))
        for array in (queries, keys, values)
    )
    mask = cache.make_mask(length)
    read, _ = cache.update_and_fetch(*new)
    cache.observe(asked, read, 1.0, mask, None)


def _budgets(method: Method) -> set[int]:
    return {method.budget} if method.share is None else {method.budget, method.share.least}


def _evicting(caches: list[Any]) -> list[EvictingCache]:
    return [cache for cache in caches if isinstance(cache, EvictingCache)]
