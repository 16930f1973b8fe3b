"""The step that evicts, compiled: a token comes and a row goes, or an interval of them, and no shape changes.

MLX then repeats the step without Python, and joins its small operations: a GPU would wait for both. What is
kept is the same. A scorer that wants Python's own numbers cannot be compiled, and is run as it is.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import mlx.core as mx

from vqx import kernels
from vqx.layer import Each, Layer, Plan, Seen, Waiting, begun, caught_up, settle
from vqx.rows import Rows, append, overwrite

Run: TypeAlias = Callable[..., tuple[Any, ...]]


def compiled(plan: Plan) -> Run | None:
    """The step of a plan, where one can be compiled and it pays: on a GPU."""
    scorer, share = plan.method.scorer, plan.method.share
    able = plan.defers and plan.packing is None and scorer.note is None and share is None
    return step_of(plan) if able and mx.default_device() == mx.gpu else None


def step_of(plan: Plan) -> Run:
    """The step as a function of arrays alone, compiled when it first runs."""

    def run(
        rows: list[Any],
        late: list[Any],
        new: list[Any],
        end: Any,  # the position of the next token, [B]: a number in an array, or each would be compiled
        asked: list[mx.array],
        held: list[mx.array],
        notes: dict[str, mx.array],
        scale: float,
        sinks: list[mx.array],
    ) -> tuple[Any, ...]:
        keys, values, position, columns = rows
        if late:
            position = mx.concatenate([position, late[0]], axis=2)
            columns = {name: mx.concatenate([c, late[1][name]], axis=2) for name, c in columns.items()}
        sink = sinks[0] if sinks else None
        batch, _, n = position.shape
        layer = Layer(
            Rows(keys, values, position, columns),
            last=1,
            evicted=True,
            notes=notes,
            seen=Seen(held[0], (), scale, sink) if held else None,
            waiting=Waiting(tuple(asked), 0, scale, sink) if asked else None,
            each=Each((n,) * batch, end, ()),
        )
        layer = caught_up(plan, layer)
        tied = mx.depends([new[0]], layer.carried)[0]
        layer, slot = settle(plan, layer, room=plan.options.interval)
        coming = Rows(tied, *new[1:])
        found = append(layer.rows, coming) if slot is None else overwrite(layer.rows, slot, coming)
        return *found[:4], [] if layer.seen is None else [layer.seen.queries]

    kernels.target()  # what runs is found out by trying it, which must not happen while compiling
    step: Run = mx.compile(run)
    return step


def alike(plan: Plan, layer: Layer) -> bool:
    """Whether the next token's step is one of many that are alike."""
    plain = layer.heads == 1 and layer.each is None and not (layer.seen and layer.seen.logits)
    return plain and layer.evicted and layer.last == 1 and plan.due(layer)


def exchange(run: Run, plan: Plan, layer: Layer, keys: mx.array, values: mx.array) -> Layer:
    """As ``vqx.layer.admit`` for one token, where layers are ``alike``."""
    start, rows, waiting, seen = layer.tokens_seen, layer.rows, layer.waiting, layer.seen
    new, late = begun(plan, keys, values, start, start), []
    if rows.bare:
        n, first = rows.position.shape[2], start - rows.bare
        behind = begun(
            plan, rows.keys[:, :, n : rows.length], rows.values[:, :, n : rows.length], first, first
        )
        late = [behind.position, behind.columns]
    asked = () if waiting is None else waiting.queries
    last = waiting or seen
    *found, queries = run(
        [*rows[:4]],
        late,
        [*new[:4]],
        mx.full((keys.shape[0],), start, mx.int32),
        [*asked],
        [] if seen is None else [seen.queries],
        dict(layer.notes),
        1.0 if last is None else last.scale,
        [] if last is None or last.sinks is None else [last.sinks],
    )
    if seen is not None:
        origin = (*seen.origin, *range(start - len(asked), start))[-queries[0].shape[3] :]
        seen = seen._replace(queries=queries[0], origin=origin)
    return layer._replace(
        rows=Rows(*found),
        tokens_seen=start + 1,
        generated=layer.generated + 1,
        seen=seen,
        waiting=None,
    )
