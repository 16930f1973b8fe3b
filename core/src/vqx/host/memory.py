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


KERNELS = {"Pad": 2, "Scan": 2, "Scatter": 2, "ScatterAxis": 2, "SliceUpdate": 2, "DynamicSliceUpdate": 2}
KERNELS |= {"ArgPartition": 4, "ArgSort": 4, "Partition": 4, "Sort": 4}
"""What an operation counts that takes a GPU several kernels."""


class Pace(NamedTuple):
    """When the evaluator closes a task: what its operations read is held until the task has run."""

    operations: int
    numbers: float  # read, in 2**20
    copying: int  # what an operation counts
    writing: int  # what one counts that takes an input's buffer over
    viewing: int  # what one counts that only looks at its input in another way
    behind: float  # part of the tasks closed that the device has yet to run, as far as the evaluator lets it


def pace() -> Pace:
    """That of the device in use."""
    if mx.default_device() == mx.Device(mx.cpu):
        return Pace(10, math.inf, 2, 1, 1, 1.0)
    if mx.metal.is_available():
        return Pace(50, 50, 1, 1, 0, 1.0)
    return Pace(100, 1000, 1, 1, 0, 0.25)  # the last as measured, an H200 with Llama shapes


def under_way() -> int:
    """Operations that make something new and that the device may be behind: no more hold memory at once."""
    return (TASKS + 2) * pace().operations // pace().copying


class Array:
    """An array of the graph, the same object wherever it is read."""

    __slots__ = ("itemsize", "nbytes")

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
        self.itemsize = dtype.size
        self.nbytes = math.prod(shape) * self.itemsize


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
    known: dict[str, Array] = {}
    graph = Graph([], [], [], [])
    results: list[str] = []

    def new(name: str, shape: tuple[int, ...], dtype: mx.Dtype) -> Array:
        known[name] = found = Array(shape, dtype)
        return found

    def tell(part: dict[str, Any]) -> None:
        kind = part["type"]
        if kind == "primitive":
            inputs = [known[name] for name, *_ in part["inputs"]]
            made = [new(*one) for one in part["outputs"]]
            graph.operations.append(Operation(part["name"], inputs, made, _ordered(part)))
        elif kind == "inputs":
            graph.given.extend(new(*one) for one in part["inputs"])
        elif kind == "constants":
            graph.constants.extend(new(name, a.shape, a.dtype) for name, a in part["constants"])
        elif kind == "outputs":
            results.extend(name for name, *_ in part["outputs"])

    mx.export_function(tell, function, *arguments)
    graph.results.extend(known[name] for name in results)
    return graph


def peak(graph: Graph, held: int = 0) -> int:
    """Bytes in use at the worst moment of its evaluation, what is given and what comes out included.

    Args:
        held: so many of the arguments, the first ones, are held by others as well and are never freed.
    """
    walk = _Walk(graph, held)
    for operation in _tape(graph):
        walk.run(operation)
    return walk.most


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
    operations = [*graph.operations, Operation("Synchronize", graph.results, [], True)]
    makes = {array: number for number, operation in enumerate(operations) for array in operation.outputs}
    makers = [[makes[array] for array in operation.inputs if array in makes] for operation in operations]
    degree, root = [0] * len(operations), len(operations) - 1
    stack, known = [root], {root}
    while stack:
        for maker in makers[stack.pop()]:
            degree[maker] += 1
            if maker not in known:
                known.add(maker)
                stack.append(maker)
    tape, at = [root], 0
    waiting: list[tuple[int, int]] = []
    while at < len(tape) or waiting:
        if at < len(tape):
            operation, first = tape[at], 0
            at += 1
        else:
            operation, first = waiting.pop()
        for number in range(first, len(makers[operation])):
            if len(tape) - at >= WIDTH:
                waiting.append((operation, number))
                break
            maker = makers[operation][number]
            degree[maker] -= 1
            if degree[maker] == 0:
                tape.append(maker)
    return [operations[number] for number in tape[:0:-1]]


class _Buffer:
    __slots__ = ("size", "users")

    def __init__(self, size: int) -> None:
        self.size, self.users = size, 0


class _Walk:
    """The evaluator's memory while it goes through a tape."""

    def __init__(self, graph: Graph, held: int) -> None:
        self.pace = pace()
        self.reads: Counter[Array] = Counter(graph.results)
        for operation in graph.operations:
            self.reads.update({*operation.inputs})
        self.buffers: dict[Array, tuple[_Buffer, bool]] = {}
        self.tasks: deque[list[_Buffer]] = deque([[]])
        self.counted = self.numbers = self.closed = 0
        self.now = self.most = 0
        for array in [*graph.constants, *graph.given]:
            self._hold(array, self._allocate(array.nbytes), True)
        self.reads.update([*graph.constants, *graph.given[:held]])

    def run(self, operation: Operation) -> None:
        """Dispatch an operation: find room for what it makes, and let go of what nobody reads any more."""
        found = [self.buffers.get(array) for array in operation.inputs]
        made = [self._result(operation, array, found) for array in operation.outputs]
        for array, (buffer, ordered) in zip(operation.outputs, made, strict=True):
            self._hold(array, buffer, ordered)
        read = {id(one[0]): one[0] for one in found if one is not None}
        new = any(id(buffer) not in read for buffer, _ in made)
        self._pend(operation, [one for key, one in read.items() if key != id(made[0][0])], new)
        for array in {*operation.inputs}:
            self._read(array)
        for array in operation.outputs:
            if not self.reads[array]:
                self._release(self.buffers.pop(array)[0])

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
        views = {one for one in operation.inputs if self.buffers[one][0] is buffer}
        alone = buffer.users == len(views) and all(self.reads[one] == 1 for one in views)
        return alone and given.itemsize == array.itemsize and 0 <= buffer.size - array.nbytes <= SPARE

    def _pend(self, operation: Operation, buffers: list[_Buffer], new: bool) -> None:
        """Hold what is read until the device has come so far."""
        for buffer in buffers:
            buffer.users += 1
        self.tasks[-1] += buffers
        self._count(operation, new)
        if self.counted >= self.pace.operations or self.numbers > self.pace.numbers * 2**20:
            self.tasks.append([])
            self.counted = self.numbers = 0
            self.closed += 1
        while len(self.tasks) > min(TASKS, self.closed * self.pace.behind + 1) + 1:
            for buffer in self.tasks.popleft():
                self._release(buffer)

    def _count(self, operation: Operation, new: bool) -> None:
        """Count what an operation takes of its task."""
        kind, pace = operation.kind, self.pace
        read = {id(self.buffers[array][0]): array for array in operation.inputs}
        inside = kind in STEPS or 1 == len(read) < len(operation.inputs)  # of one kernel with the next
        if inside or (not new and kind in VIEWS):
            self.counted += pace.viewing
            return
        several = 1 if math.isinf(pace.numbers) else KERNELS.get(kind, 1)
        self.counted += several * (pace.copying if new else pace.writing)
        self.numbers += sum(array.nbytes // array.itemsize for array in read.values())

    def _allocate(self, size: int) -> _Buffer:
        self.now += size
        self.most = max(self.most, self.now)
        return _Buffer(size)

    def _hold(self, array: Array, buffer: _Buffer, ordered: bool) -> None:
        buffer.users += 1
        self.buffers[array] = (buffer, ordered)

    def _read(self, array: Array) -> None:
        self.reads[array] -= 1
        if not self.reads[array]:
            self._release(self.buffers.pop(array)[0])

    def _release(self, buffer: _Buffer) -> None:
        buffer.users -= 1
        if not buffer.users:
            self.now -= buffer.size
