"""The step that evicts, recorded: a token comes and a row goes, or an interval of them, and no shape changes.

MLX repeats a recorded step by itself, where Python takes longer to write it down than a GPU to run it. It is
recorded by export and import, which run the operations as they are: ``mx.compile`` would join them into new
kernels, and compiling those takes longer than most conversations. A scorer that wants Python's own numbers
cannot be recorded, and is run as it is.
"""

import functools
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import mlx.core as mx

from vqx import kernels
from vqx.options import Options
from vqx.scorers import Method, accumulated
from vqx.state.layer import Each, Layer, Plan, Seen, Waiting, admit, begun, caught_up, settle, wait, watch
from vqx.state.rows import Rows, append, overwrite

Replay: TypeAlias = Callable[..., list[mx.array]]

ASKED = "VQX_RECORD"
"""The environment's word for it: off by default, until a GPU has shown what it gains."""

ALIKE = 3
"""Steps that must have been alike before one is recorded, which costs as much as some tens of them."""


class Given(NamedTuple):
    """What a step is made of: arrays, and the order in which a recording takes and gives them."""

    rows: Rows  # with nothing bare
    late: tuple[mx.array, ...]  # position and columns of the rows behind, [B, H, t] each
    new: Rows  # of the token that comes
    end: mx.array  # [B] its position
    asked: tuple[mx.array, ...]  # queries that wait, [B, H * G, 1, D] each
    seen: tuple[mx.array, ...]  # the latest queries, [B, H, G, q, D], if a score wants any
    notes: Mapping[str, mx.array]
    sinks: tuple[mx.array, ...]

    def arrays(self) -> list[mx.array]:
        return [
            *_flat(self.rows), *self.late, *_flat(self.new), self.end, *self.asked, *self.seen,
            *self.notes.values(), *self.sinks,
        ]  # fmt: skip

    def of(self, arrays: list[mx.array]) -> "Given":
        """The same with other arrays."""
        left = iter(arrays)
        return Given(
            _like(self.rows, left),
            tuple(next(left) for _ in self.late),
            _like(self.new, left),
            next(left),
            tuple(next(left) for _ in self.asked),
            tuple(next(left) for _ in self.seen),
            {name: next(left) for name in self.notes},
            tuple(next(left) for _ in self.sinks),
        )


def alike(plan: Plan, layer: Layer) -> bool:
    """Whether the next token's step is one of many that are alike."""
    plain = layer.heads == 1 and layer.each is None and not (layer.seen and layer.seen.logits)
    return plain and layer.evicted and layer.last == 1 and plan.due(layer)


def recordable(plan: Plan) -> bool:
    """Whether to record a plan's step: asked for, of arrays alone, and on a device that can."""
    if os.environ.get(ASKED) != "on":
        return False
    scorer, share = plan.method.scorer, plan.method.share
    plain = plan.defers and plan.packing is None and plan.across is None
    if not plain or scorer.note is not None or share is not None:
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    return mx.default_device() == mx.cpu or tried(str(mx.default_device()))


@functools.cache
def tried(device: str) -> bool:
    """Whether a recorded step keeps on a device what the step as it is keeps: tried once, in small.

    On a CPU the tests say so; a GPU has its own kernels, drivers and versions.
    """
    plan = Plan(Method(accumulated(), 16, n_sink=2, recent=2), Options(queries="model"))
    tokens = mx.random.normal((3, 1, 2, 20 + 4 * ALIKE, 32), key=mx.random.key(0))
    try:
        one, other = (_kept(plan, tokens, recorder) for recorder in (None, Recorder(plan)))
        return bool(mx.array_equal(one, other).item())
    except Exception:  # whatever a driver or compiler says
        return False


def _kept(plan: Plan, tokens: mx.array, recorder: "Recorder | None") -> mx.array:
    """Positions left of a prompt of 20 tokens and of those after it."""
    queries, keys, values = tokens[..., :20, :]
    layer = watch(plan, admit(plan, None, keys, values, 0), queries[:, :, None], scale=0.2)
    for at in range(20, tokens.shape[3]):
        queries, keys, values = tokens[..., at : at + 1, :]
        again = None
        if recorder is not None and alike(plan, layer):
            again = recorder.exchange(layer, keys, values)
        layer = wait(plan, again or admit(plan, layer, keys, values, at), queries, 0.2, None)
    if recorder is not None and not recorder.recorded:
        raise RuntimeError("nothing was recorded")
    return mx.sort(caught_up(plan, layer).rows.position, axis=-1)


class Recorder:
    """Exchanges a row, or an interval of them, by a step that is recorded once it has recurred."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recorded: dict[tuple[Any, ...], Replay] = {}
        self._alike = 0

    def exchange(self, layer: Layer, keys: mx.array, values: mx.array) -> Layer | None:
        """As ``layer.admit`` for one token, where layers are ``alike``; None where it is not recorded."""
        self._alike += 1
        if self._alike <= ALIKE or threading.current_thread() is not threading.main_thread():
            return None  # MLX gives an imported function the first stream, which is the main thread's alone
        start, rows, waiting, seen = layer.tokens_seen, layer.rows, layer.waiting, layer.seen
        asked, last = () if waiting is None else waiting.queries, waiting or seen
        scale = 1.0 if last is None else last.scale
        late: tuple[mx.array, ...] = ()
        if rows.bare:
            n, first = rows.position.shape[2], start - rows.bare
            bare = [array[:, :, n : rows.length] for array in (rows.keys, rows.values)]
            late = _flat(begun(self.plan, bare[0], bare[1], first, first))[2:]
        given = Given(
            rows._replace(bare=0),
            late,
            begun(self.plan, keys, values, start, start),
            mx.full((keys.shape[0],), start, mx.int32),
            asked,
            () if seen is None else (seen.queries,),
            layer.notes,
            () if last is None or last.sinks is None else (last.sinks,),
        )
        key = (rows.keys.shape, rows.length, rows.bare, len(asked), seen is None, scale, len(given.sinks))
        replay = self.recorded.get(key)
        if replay is None:
            replay = self.recorded[key] = _recorded(self.plan, given, scale)
        left = iter(replay(*given.arrays()))
        rows = _like(given.new, left)
        if seen is not None:
            queries = next(left)
            origin = (*seen.origin, *range(start - len(asked), start))[-queries.shape[3] :]
            seen = seen._replace(queries=queries, origin=origin)
        return layer._replace(
            rows=rows, tokens_seen=start + 1, generated=layer.generated + 1, seen=seen, waiting=None
        )


def _recorded(plan: Plan, given: Given, scale: float) -> Replay:
    """The step as MLX repeats it."""
    kernels.target()  # what runs is found out by trying it, which must not happen while recording

    def step(*arrays: mx.array) -> list[mx.array]:
        return _step(plan, given.of([*arrays]), scale)

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "step.mlxfn"))
        mx.export_function(file, step, *given.arrays())
        return cast(Replay, mx.import_function(file))


def _step(plan: Plan, given: Given, scale: float) -> list[mx.array]:
    """What ``vqx.state.layer.admit`` does, of arrays alone: no number in it changes from token to token."""
    keys, values, position, columns, _ = given.rows
    if given.late:
        position = mx.concatenate([position, given.late[0]], axis=2)
        late = dict(zip(columns, given.late[1:], strict=True))
        columns = {name: mx.concatenate([c, late[name]], axis=2) for name, c in columns.items()}
    sinks = given.sinks[0] if given.sinks else None
    end: Any = given.end
    layer = Layer(
        Rows(keys, values, position, columns),
        last=1,
        evicted=True,
        notes=given.notes,
        seen=Seen(given.seen[0], (), scale, sinks) if given.seen else None,
        waiting=Waiting(given.asked, 0, scale, sinks) if given.asked else None,
        each=Each((position.shape[2],) * position.shape[0], end, ()),
    )
    layer = caught_up(plan, layer, choose=True)
    tied = mx.depends([given.new.keys], layer.carried)[0]
    layer, slot = settle(plan, layer, room=plan.options.interval)
    new = given.new._replace(keys=tied)
    rows = append(layer.rows, new) if slot is None else overwrite(layer.rows, slot, new)
    return [*_flat(rows), *(() if layer.seen is None else (layer.seen.queries,))]


def _flat(rows: Rows) -> tuple[mx.array, ...]:
    return (*rows[:3], *rows.columns.values())


def _like(rows: Rows, left: Any) -> Rows:
    return Rows(next(left), next(left), next(left), {name: next(left) for name in rows.columns})
