"""A method on a stream with kernels and without, for the tests of plugins that ship them."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from vqx import kernels
from vqx.options import Options, Queries
from vqx.state.rows import Rows
from vqx.testing.driving import cache_of, forward
from vqx.testing.streams import Shape, stream


class Decoded(NamedTuple):
    """What a cache held at each generated token, and how often a kernel chose the row that went."""

    position: npt.NDArray[np.int32]  # [tokens, B, H, n], oldest first
    columns: Mapping[str, npt.NDArray[Any]]  # each [tokens, B, H, n]
    chosen: int


def decoded(
    target: str,
    method: str,
    queries: Queries = "model",
    *,
    dtype: mx.Dtype = mx.float32,
    shape: Shape = Shape(64, width=36),  # noqa: B008
    prompt: int = 40,
    interval: int = 1,
    **options: Any,
) -> Decoded:
    """Read a prompt, then generate token after token, with the kernels of a target.

    Args:
        target: ``reference``, ``host``, or a device, which a test may emulate.
        prompt: tokens read at once; the stream's others are generated.
        interval: tokens between two cuts.
        options: the method's own, ``budget`` among them.
    """
    tokens = stream("gaussian", 5, shape).astype(dtype)
    cache = cache_of(method, Options(queries=queries, interval=interval), **options)
    held: list[Rows] = []
    with _on(target) as chosen:
        forward(cache, tokens.cut(0, prompt))
        for at in range(prompt, shape.length):
            forward(cache, tokens.cut(at, at + 1))
            layer = cache._layer  # as it is: to ask for more would have the scorer look at once
            if layer is not None and layer.evicted:
                held.append(layer.rows)
    if not held:
        raise ValueError(f"nothing was evicted: {shape.length} tokens, budget {cache.plan.method.budget}")
    age = [np.argsort(np.array(rows.position), axis=2) for rows in held]

    least = min(rows.position.shape[2] for rows in held)  # the newest rows may still lack theirs

    def stacked(arrays: list[mx.array]) -> npt.NDArray[Any]:
        ordered = [np.take_along_axis(np.array(a), at, axis=2) for a, at in zip(arrays, age, strict=True)]
        return np.stack([column[..., :least] for column in ordered])

    columns = {name: stacked([rows.columns[name] for rows in held]) for name in held[0].columns}
    return Decoded(stacked([rows.position for rows in held]), columns, len(chosen))


def kept_alike(
    method: str, queries: Queries = "model", *, dtype: mx.Dtype = mx.float32, **options: Any
) -> int:
    """Hold the host's loops to the rows that MLX operations keep; how often a kernel chose.

    Raises:
        AssertionError: other rows, statistics further apart than rounding, or a kernel in the reference.
    """
    reference = decoded("reference", method, queries, dtype=dtype, **options)
    found = decoded("host", method, queries, dtype=dtype, **options)
    assert reference.chosen == 0
    least = min(found.position.shape[-1], reference.position.shape[-1])
    # scores differ by rounding, and no two of this stream are that close
    assert np.array_equal(found.position[..., :least], reference.position[..., :least])
    for name, column in reference.columns.items():
        np.testing.assert_allclose(
            found.columns[name][..., :least], column[..., :least], rtol=1e-4, atol=1e-7
        )
    return found.chosen


def same_bits_on(target: str, device: AbstractContextManager[Any], method: str, **options: Any) -> None:
    """Hold a target, emulated inside ``device``, to the bits of the host's loops.

    Raises:
        AssertionError: other rows or statistics, or no row was chosen by a kernel.
    """
    shape = Shape(46, width=36)
    wanted = decoded("host", method, shape=shape, **options)
    with device:
        found = decoded(target, method, shape=shape, **options)
    assert found.chosen == wanted.chosen > 0
    assert np.array_equal(found.position, wanted.position)
    assert all(np.array_equal(found.columns[name], wanted.columns[name]) for name in wanted.columns)


@contextmanager
def _on(target: str) -> Iterator[list[str]]:
    usual = kernels.target, kernels.step, kernels.ranked
    chosen: list[str] = []

    def counted(function: Any) -> Any:
        def called(*given: Any, **how: Any) -> Any:
            found = function(*given, **how)
            if found is not None:
                chosen.append(target)
            return found

        return called

    kernels.target = lambda: target
    kernels.step, kernels.ranked = map(counted, usual[1:])
    try:
        yield chosen
    finally:
        kernels.target, kernels.step, kernels.ranked = usual
