"""The peak of memory at which MLX would evaluate a function, found without evaluating it.

MLX traces the function into its graph; the walk here is the evaluator's (``mlx/transforms.cpp``): the same
order, views and results that take an input's buffer over, buffers that are held until their operation ran.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

WIDTH = 20
"""Arrays that the evaluator looks at side by side before it goes down a level (MLX_BFS_MAX_WIDTH)."""

TASKS = 10
"""Tasks that the evaluator runs ahead of the device."""

SPARE = 16384
"""Bytes by which a buffer may be too large and still be taken over."""

VIEWS = {"AsStrided", "Broadcast", "BroadcastAxes", "Contiguous", "Copy", "Depends", "ExpandDims", "Flatten"}
VIEWS |= {"Reshape", "Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View"}
"""Operations whose result may be its input's buffer."""

COPIES = {"Contiguous", "Flatten", "Reshape", "Unflatten"}
"""Those among them that copy what does not stand in order."""

STEPS = {"Erf", "Sigmoid", "Tanh"}
"""Steps of activations, which MLX compiles into one operation (``mlx.nn``): never held by themselves."""

UPDATES = {"DynamicSliceUpdate", "Scatter", "ScatterAxis", "SliceUpdate"}
"""Operations that write into their first input where nobody else needs it."""

FRESH = {"ArgPartition", "ArgReduce", "ArgSort", "Concatenate", "CustomKernel", "Gather", "GatherAxis"}
FRESH |= {"GatherMM", "GatherQMM", "Matmul", "Pad", "QuantizedMatmul", "Reduce", "ScaledDotProductAttention"}
"""Operations that write into none of their inputs. All others may, as elementwise ones do."""


class Pace(NamedTuple):
    """When the evaluator closes a task: what its operations read is held until the task has run."""

    operations: int
    numbers: float  # read, in 2**20
    copying: int  # what an operation counts
    viewing: int  # what one counts that only looks at its input in another way


def pace() -> Pace:
    """That of the device in use."""
    if mx.default_device() == mx.Device(mx.cpu):
        return Pace(10, math.inf, 2, 1)
    return Pace(50, 50, 1, 0) if mx.metal.is_available() else Pace(100, 1000, 1, 0)


def under_way() -> int:
    """Operations that the device may be behind: no more of them hold memory at once."""
    return (TASKS + 2) * pace().operations


class Array(NamedTuple):
    """An array of the graph."""

    name: str
    nbytes: int
    itemsize: int


class Operation(NamedTuple):
    """What makes some arrays out of others."""

    kind: str
    inputs: list[Array]
    outputs: list[Array]
    ordered: bool  # the results stand in order where the inputs do


class Graph(NamedTuple):
    """A function as MLX traced it."""

    given: list[Array]
    constants: list[Array]
    operations: list[Operation]
    results: list[Array]


def traced(function: Callable[..., Sequence[mx.array]], arguments: Sequence[mx.array]) -> Graph:
    """The graph of ``function`` over arrays like ``arguments``: nothing is evaluated."""
    told: list[dict[str, Any]] = []
    mx.export_function(told.append, function, *arguments)
    parts = {part["type"]: part for part in told if part["type"] != "primitive"}
    operations = [
        Operation(
            part["name"],
            [_array(*one) for one in part["inputs"]],
            [_array(*one) for one in part["outputs"]],
            _ordered(part),
        )
        for part in told
        if part["type"] == "primitive"
    ]
    return Graph(
        [_array(*one) for one in parts["inputs"]["inputs"]],
        [_array(name, array.shape, array.dtype) for name, array in parts["constants"]["constants"]],
        operations,
        [_array(*one) for one in parts["outputs"]["outputs"]],
    )


def peak(graph: Graph, held: int = 0) -> int:
    """Bytes in use at the worst moment of its evaluation, what is given and what comes out included.

    Args:
        held: so many of the arguments, the first ones, are held by others as well and are never freed.
    """
    walk = _Walk(graph, held)
    for operation in _tape(graph):
        walk.run(operation)
    return walk.most


def _array(name: str, shape: tuple[int, ...], dtype: mx.Dtype) -> Array:
    return Array(name, math.prod(shape) * dtype.size, dtype.size)


def _ordered(part: dict[str, Any]) -> bool:
    kind = part["name"]
    shape, result = part["inputs"][0][1] if part["inputs"] else (), part["outputs"][0][1]
    if kind == "Transpose":
        axes = [axis for axis in part["arguments"][0] if shape[axis] != 1]
        return bool(axes == sorted(axes))
    if kind in ("Slice", "Split"):
        cut = [axis for axis, (old, new) in enumerate(zip(shape, result, strict=True)) if old != new]
        return not cut or bool(math.prod(shape[: cut[0]]) == 1)
    if kind in ("Broadcast", "BroadcastAxes"):
        return bool(math.prod(shape) == math.prod(result))
    return bool(kind != "AsStrided")


def _tape(graph: Graph) -> list[Operation]:
    """The operations in the order in which MLX's evaluator dispatches them (``eval_impl``)."""
    makes = {array.name: operation for operation in graph.operations for array in operation.outputs}
    root = Operation("Synchronize", graph.results, [], True)
    degree: Counter[str] = Counter()
    stack, known = [root], {id(root)}
    while stack:
        for array in stack.pop().inputs:
            maker = makes.get(array.name)
            if maker is None:
                continue
            degree.update(one.name for one in maker.outputs)
            if id(maker) not in known:
                known.add(id(maker))
                stack.append(maker)
    tape, at = [root], 0
    waiting: list[tuple[Operation, int]] = []
    while at < len(tape) or waiting:
        if at < len(tape):
            operation, first = tape[at], 0
            at += 1
        else:
            operation, first = waiting.pop()
        for number in range(first, len(operation.inputs)):
            maker = makes.get(operation.inputs[number].name)
            if maker is None:
                continue
            if len(tape) - at >= WIDTH:
                waiting.append((operation, number))
                break
            names = [one.name for one in maker.outputs]
            degree.subtract(names)
            if degree[names[0]] == 0:
                tape.append(maker)
    return tape[:0:-1]


class _Buffer:
    def __init__(self, size: int) -> None:
        self.size, self.users = size, 0


class _Walk:
    """The evaluator's memory while it goes through a tape."""

    def __init__(self, graph: Graph, held: int) -> None:
        self.pace = pace()
        self.reads: Counter[str] = Counter()
        for operation in graph.operations:
            self.reads.update({array.name for array in operation.inputs})
        self.reads.update({array.name for array in graph.results})
        self.buffers: dict[str, tuple[_Buffer, bool]] = {}
        self.tasks: deque[list[_Buffer]] = deque([[]])
        self.counted, self.numbers = 0, 0
        self.now = self.most = 0
        for array in [*graph.constants, *graph.given]:
            self._hold(array, self._allocate(array.nbytes), True)
        self.reads.update(array.name for array in [*graph.constants, *graph.given[:held]])

    def run(self, operation: Operation) -> None:
        """Dispatch an operation: find room for what it makes, and let go of what nobody reads any more."""
        found = [self.buffers.get(array.name) for array in operation.inputs]
        made = [self._result(operation, array, found) for array in operation.outputs]
        for array, (buffer, ordered) in zip(operation.outputs, made, strict=True):
            self._hold(array, buffer, ordered)
        read = {id(one[0]): one[0] for one in found if one is not None}
        new = any(id(buffer) not in read for buffer, _ in made)
        self._pend(operation, [one for key, one in read.items() if key != id(made[0][0])], new)
        for name in {array.name for array in operation.inputs}:
            self._read(name)
        for array in operation.outputs:
            if not self.reads[array.name]:
                self._release(self.buffers.pop(array.name)[0])

    def _result(
        self, operation: Operation, array: Array, found: list[tuple[_Buffer, bool] | None]
    ) -> tuple[_Buffer, bool]:
        kind, first = operation.kind, found[0] if found else None
        if first is not None and kind in STEPS:
            return first
        if first is not None and kind in VIEWS and (first[1] or kind not in COPIES):
            return first[0], first[1] and operation.ordered
        able = [] if kind in FRESH else found[:1] if kind in UPDATES else found
        for one, given in zip(able, operation.inputs, strict=False):
            if one is not None and self._spare(one[0], given, operation, array):
                return one
        return self._allocate(array.nbytes), True

    def _spare(self, buffer: _Buffer, given: Array, operation: Operation, array: Array) -> bool:
        """Whether nobody else needs the buffer, and the result fits it."""
        names = {one.name for one in operation.inputs if self.buffers[one.name][0] is buffer}
        alone = buffer.users == len(names) and all(self.reads[name] == 1 for name in names)
        return alone and given.itemsize == array.itemsize and 0 <= buffer.size - array.nbytes <= SPARE

    def _pend(self, operation: Operation, buffers: list[_Buffer], new: bool) -> None:
        """Hold what is read until the device has come so far."""
        for buffer in buffers:
            buffer.users += 1
        self.tasks[-1] += buffers
        self.counted += self.pace.copying if new else self.pace.viewing
        self.numbers += sum(array.nbytes // array.itemsize for array in operation.inputs) if new else 0
        if self.counted >= self.pace.operations or self.numbers > self.pace.numbers * 2**20:
            self.tasks.append([])
            self.counted = self.numbers = 0
        while len(self.tasks) > TASKS + 1:
            for buffer in self.tasks.popleft():
                self._release(buffer)

    def _allocate(self, size: int) -> _Buffer:
        self.now += size
        self.most = max(self.most, self.now)
        return _Buffer(size)

    def _hold(self, array: Array, buffer: _Buffer, ordered: bool) -> None:
        buffer.users += 1
        self.buffers[array.name] = (buffer, ordered)

    def _read(self, name: str) -> None:
        self.reads[name] -= 1
        if not self.reads[name]:
            self._release(self.buffers.pop(name)[0])

    def _release(self, buffer: _Buffer) -> None:
        buffer.users -= 1
        if not buffer.users:
            self.now -= buffer.size
