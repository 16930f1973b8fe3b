"""The peak of memory at which MLX would evaluate a function, found without evaluating it.

MLX traces the function into its graph; the walk here is the evaluator's (``mlx/transforms.cpp``): the same
order, views and results that take an input's buffer over, buffers that are held until their operation ran.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx

from vqx.host.layouts import Sizes, alike, in_order, like, multiplies, shared, viewed
from vqx.host.pace import (
    ASKING,
    CLUSTERED,
    FREEING,
    LAUNCHING,
    LONG,
    RUNNING,
    SPLIT,
    STARTING,
    TASKS,
    WAITED,
    WRITING,
    WRITTEN,
    Pace,
    pace,
)

WIDTH = 20
"""Arrays that the evaluator looks at side by side before it goes down a level (MLX_BFS_MAX_WIDTH)."""

SPARE = 16384
"""Bytes by which a buffer may be too large and still be taken over."""

VIEWS = {"AsStrided", "Broadcast", "BroadcastAxes", "Contiguous", "Copy", "Depends", "ExpandDims", "Flatten"}
VIEWS |= {"Reshape", "Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View"}
"""Operations whose result may be its input's buffer."""

STEPS = {"Erf", "Sigmoid", "Tanh"}
"""Steps of activations, which MLX compiles into one operation (``mlx.nn``): never held by themselves."""

UPDATES = {"DynamicSliceUpdate", "Scatter", "ScatterAxis", "SliceUpdate"}
"""Operations that write into their first input where nobody else needs it."""

FRESH = {"ArgPartition", "ArgReduce", "ArgSort", "Concatenate", "CustomKernel", "Gather", "GatherAxis"}
FRESH |= {"GatherMM", "GatherQMM", "Matmul", "Pad", "QuantizedMatmul", "Reduce", "ScaledDotProductAttention"}
"""Operations that write into none of their inputs. All others may, as elementwise ones do."""

GATHERS = {"Gather", "GatherAxis"}
"""Operations that read no more of their first input than they write."""

KERNELS = {"Pad": 2, "Scan": 2, "Scatter": 2, "ScatterAxis": 2, "SliceUpdate": 2, "DynamicSliceUpdate": 2}
KERNELS |= {"ArgPartition": 4, "ArgSort": 4, "Concatenate": 3, "Partition": 4, "Sort": 4}
"""What an operation counts that takes a GPU several kernels."""


class Array:
    """An array of the graph, the same object wherever it is read, and what the walk under way notes of it."""

    __slots__ = ("buffer", "itemsize", "nbytes", "reads", "shape", "strides")
    buffer: "_Buffer"
    strides: Sizes
    reads: int  # operations to come that read it, and holders

    def __init__(self, shape: Sizes, dtype: mx.Dtype) -> None:
        self.shape, self.itemsize = shape, dtype.size
        self.nbytes = math.prod(shape) * self.itemsize

    @property
    def numbers(self) -> int:
        """Those that stand in memory for it."""
        return min(self.nbytes, self.buffer.size) // self.itemsize


class Operation(NamedTuple):
    """What makes some arrays out of others."""

    kind: str
    inputs: list[Array]
    outputs: list[Array]
    arguments: Sequence[Any]  # MLX's, of views that need them


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

    def new(name: str, shape: Sizes, dtype: mx.Dtype) -> Array:
        known[name] = found = Array(shape, dtype)
        return found

    def tell(part: dict[str, Any]) -> None:
        kind = part["type"]
        if kind == "primitive":
            inputs = [known[name] for name, *_ in part["inputs"]]
            made = [new(*one) for one in part["outputs"]]
            graph.operations.append(Operation(part["name"], inputs, made, _arguments(part)))
        elif kind == "inputs":
            graph.given.extend(new(*one) for one in part["inputs"])
        elif kind == "constants":
            graph.constants.extend(new(name, a.shape, a.dtype) for name, a in part["constants"])
        elif kind == "outputs":
            results.extend(name for name, *_ in part["outputs"])

    mx.export_function(tell, function, *arguments)
    graph.results.extend(known[name] for name in results)
    return graph


def peak(graph: Graph, held: int = 0, begun: int = 0) -> int:
    """Bytes in use at the worst moment of its evaluation, what is given and what comes out included.

    Args:
        held: so many of the arguments, the first ones, are held by others as well and are never freed.
        begun: so many of the results, the first ones, are no results: while the function was still being
            written down, what leads to each of them was evaluated, and all arguments were held.
    """
    ends, graph = graph.results[:begun], graph._replace(results=graph.results[begun:])
    walk = _Walk(graph, held)
    tapes = _tapes(graph.operations, [*([end] for end in ends), graph.results])
    for number, tape in enumerate(tapes):
        walk.write(tape, last=number == begun)
        for operation in tape:
            walk.run(operation)
        walk.close()
    return walk.most


def _arguments(part: dict[str, Any]) -> Sequence[Any]:
    if part["name"] == "CustomKernel":  # the first of its two truths: whether its inputs must stand in order
        return [one for one in part["arguments"] if isinstance(one, bool)][:1]
    return part["arguments"] if part["name"] in ("AsStrided", "Slice", "Transpose") else ()


def _tapes(operations: Sequence[Operation], wanted: Sequence[list[Array]]) -> Iterator[list[Operation]]:
    """The operations in the order in which MLX's evaluator dispatches them (``eval_impl``).

    Args:
        wanted: what is asked for, one evaluation after another.
    """
    makes = {array: number for number, operation in enumerate(operations) for array in operation.outputs}
    makers = [[makes[array] for array in operation.inputs if array in makes] for operation in operations]
    done: set[int] = set()
    for arrays in wanted:
        tape = _tape([*makers, [makes[array] for array in arrays if array in makes]], done)
        done.update(tape)
        yield [operations[number] for number in tape]


def _tape(makers: Sequence[Sequence[int]], done: set[int]) -> list[int]:
    """The order in which what the last operation needs is dispatched.

    Args:
        makers: of each operation those that make what it reads.
        done: those that were dispatched before.
    """
    degree, root = [0] * len(makers), len(makers) - 1
    stack, known = [root], {root}
    while stack:
        for maker in makers[stack.pop()]:
            degree[maker] += 1
            if maker not in known and maker not in done:
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
            maker = makers[operation][number]
            if maker in done:
                continue
            if len(tape) - at >= WIDTH:
                waiting.append((operation, number))
                break
            degree[maker] -= 1
            if degree[maker] == 0:
                tape.append(maker)
    return tape[:0:-1]


class _Buffer:
    __slots__ = ("size", "users")

    def __init__(self, size: int) -> None:
        self.size, self.users = size, 0


_T = TypeVar("_T")


class _Walk:
    """The evaluator's memory while it goes through a tape."""

    def __init__(self, graph: Graph, held: int) -> None:
        self.pace = pace()
        self.tasks: deque[list[_Buffer]] = deque([[]])
        self.ends: deque[tuple[float, bool]] = deque()  # of closed tasks; whether they count as such
        self.clock = self.work = 0.0
        self.done = 0.0  # when the device is done with all closed tasks
        self.counted, self.numbers, self.waits = 0, 0, False
        self.now = self.most = 0
        there = [*graph.constants, *graph.given]
        for array in there:
            array.reads = 0
        for operation in graph.operations:
            for array in operation.outputs:
                array.reads = 0
        for operation in graph.operations:
            for array in _distinct(operation.inputs):
                array.reads += 1
        self.kept = graph.given[held:]
        for array in [*graph.results, *there]:
            array.reads += 1
        for array in there:
            self._hold(array, self._allocate(array.nbytes), in_order(array.shape))

    def write(self, operations: Sequence[Operation], *, last: bool) -> None:
        """These operations were written down; with the last ones the arguments are let go of."""
        self.clock += sum(WRITTEN.get(operation.kind, WRITING) for operation in operations)
        for array in self.kept if last else ():
            self._read(array)

    def close(self) -> None:
        """An evaluation ends: the device gets what it has not."""
        self.clock += STARTING
        if self.counted:
            self._commit(counts=False)

    def run(self, operation: Operation) -> None:
        """Dispatch an operation: find room for what it makes, and let go of what nobody reads any more."""
        inputs = _distinct(operation.inputs)
        read = _distinct([array.buffer for array in inputs])
        made = [self._result(operation, number) for number in range(len(operation.outputs))]
        new = False
        for array, (buffer, strides) in zip(operation.outputs, made, strict=True):
            self._hold(array, buffer, strides)
            new = new or buffer not in read
        self._pend(operation, read, made[0][0], new)
        for array in inputs:
            self._read(array)
        for array in operation.outputs:
            if not array.reads:
                self._release(array.buffer)

    def _result(self, operation: Operation, number: int) -> tuple["_Buffer", Sizes]:
        kind, inputs, array = operation.kind, operation.inputs, operation.outputs[number]
        if inputs and kind in STEPS:
            return inputs[0].buffer, inputs[0].strides
        if inputs and kind in VIEWS:
            seen = inputs[number if kind == "Depends" else 0]
            view = viewed(kind, seen.shape, seen.strides, array.shape, operation.arguments)
            if view is not None:
                return seen.buffer, view
        if kind == "ScaledDotProductAttention":
            return self._allocate(array.nbytes), like(array.shape, inputs[0].strides)
        if kind in FRESH or kind in VIEWS:
            return self._allocate(array.nbytes), in_order(array.shape)
        for given in inputs[:1] if kind in UPDATES else inputs:
            if self._spare(given, operation, array):
                return given.buffer, given.strides if given.shape == array.shape else in_order(array.shape)
        strides = shared(array.shape, [(one.shape, one.strides) for one in inputs])
        return self._allocate(array.nbytes), strides

    def _spare(self, given: Array, operation: Operation, array: Array) -> bool:
        """Whether nobody else needs an input's buffer, and the result fits it."""
        buffer = given.buffer
        if given.itemsize != array.itemsize or not 0 <= buffer.size - array.nbytes <= SPARE:
            return False
        views = [one for one in _distinct(operation.inputs) if one.buffer is buffer]
        return buffer.users == len(views) and all(one.reads == 1 for one in views)

    def _pend(self, operation: Operation, read: list["_Buffer"], over: "_Buffer", new: bool) -> None:
        """Hold what is read, but for what is written over, until the device has come so far."""
        task = self.tasks[-1]
        for buffer in read:
            if buffer is not over:
                buffer.users += 1
                task.append(buffer)
        for one in _copied(operation):
            task.append(self._allocate(one.nbytes))
            task[-1].users = 1
            self.counted += 1
            self.numbers += one.numbers
        self._count(operation, read, new)
        if self.counted >= self.pace.operations or self.numbers > self.pace.numbers * 2**20:
            self._commit(counts=True)
        while self.ends and (self.ends[0][0] <= self.clock or sum(counts for _, counts in self.ends) > TASKS):
            self.clock = max(self.clock, self.ends.popleft()[0])
            for buffer in self.tasks.popleft():
                self._release(buffer)

    def _commit(self, *, counts: bool) -> None:
        """Close the task; only if it counts, the evaluator waits where too many are under way."""
        self.clock += LAUNCHING * self.counted
        self.done = max(self.clock, self.done) + self.work
        if self.waits:
            self.clock = self.done
        self.ends.append((self.done + (WAITED if self.waits else FREEING), counts))
        self.tasks.append([])
        self.counted, self.numbers, self.work, self.waits = 0, 0, 0.0, False

    def _count(self, operation: Operation, read: list["_Buffer"], new: bool) -> None:
        """Count what an operation takes of its task, and of the device's time."""
        kind, pace = operation.kind, self.pace
        inside = kind in STEPS or 1 == len(read) < len(operation.inputs)  # of one kernel with the next
        if inside or (not new and kind in VIEWS):
            self.counted += pace.viewing
            return
        counted = pace.making
        if math.isinf(pace.numbers):
            self.work = LONG
        else:
            counted *= KERNELS.get(kind, 1)
            needed = operation.inputs[1:] if kind in UPDATES and not new else operation.inputs
            self.numbers += sum({id(one.buffer): one.numbers for one in needed}.values())
            self.work += RUNNING * counted + _work(operation, needed, pace) if pace.moved else LONG
            self.waits = self.waits or (pace.waits and _clustered(operation))
        self.counted += counted
        split = kind == "Matmul" and 1 < operation.outputs[0].shape[-2] < CLUSTERED[0]
        self.clock += SPLIT if split else ASKING

    def _allocate(self, size: int) -> "_Buffer":
        self.now += size
        self.most = max(self.most, self.now)
        return _Buffer(size)

    def _hold(self, array: Array, buffer: "_Buffer", strides: Sizes) -> None:
        buffer.users += 1
        array.buffer, array.strides = buffer, strides

    def _read(self, array: Array) -> None:
        array.reads -= 1
        if not array.reads:
            self._release(array.buffer)

    def _release(self, buffer: "_Buffer") -> None:
        buffer.users -= 1
        if not buffer.users:
            self.now -= buffer.size


def _copied(operation: Operation) -> list[Array]:
    """What has to stand in another order than it does, and is copied for this operation alone."""
    if operation.kind == "Matmul":
        return [one for one in operation.inputs[:2] if not multiplies(one.shape, one.strides)]
    if operation.kind == "CustomKernel" and any(operation.arguments):
        return [one for one in operation.inputs if not alike(one.shape, one.strides, in_order(one.shape))]
    return []


def _clustered(operation: Operation) -> bool:
    """Whether it is a product of float32 by a matrix that takes kernels of which blocks work in clusters."""
    made, (rows, columns) = operation.outputs[0], CLUSTERED
    matrix = operation.kind == "Matmul" and len(operation.inputs[1].shape) == 2 and made.itemsize == 4
    return matrix and made.shape[-2] >= rows and made.shape[-1] >= columns


def _work(operation: Operation, needed: Sequence[Array], pace: Pace) -> float:
    """Microseconds that the device takes for an operation."""
    kind, (made, *_) = operation.kind, operation.outputs
    products = 0.0
    if kind in ("Matmul", "QuantizedMatmul"):
        products = 2 * math.prod(made.shape) * operation.inputs[0].shape[-1]
        products /= 1.0 if made.itemsize < 4 else pace.single
    written = needed[0].nbytes if kind in UPDATES and needed else made.nbytes
    read = written if kind in GATHERS else sum(one.numbers * one.itemsize for one in needed)
    return max(products / pace.products, (read + written) / pace.moved)


def _distinct(those: list[_T]) -> list[_T]:
    return those if len(those) < 2 else [*dict.fromkeys(those)]
