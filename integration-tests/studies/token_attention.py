"""Attention of one generated token on an NVIDIA GPU: a kernel of ours beside the two ways of MLX.

8 heads in groups of 4, bfloat16, buffers whose last rows hold NaN. Prints microseconds a call, of 64 one
after another in a graph (medians of five): until Python wrote them down, until MLX did, until they were done;
those of the GPU alone, where torch is there to ask CUPTI; and how far two sequences are from float64, of a
head's greatest number, beside the rounding of bfloat16. MLX takes cuDNN's attention for a view of a buffer of
whole steps of 256 rows, and its own for any other.
"""

import platform
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from vqx_kernels import attended
from vqx_kernels.attending import beyond, exact

HEADS, GROUP, CALLS = 8, 4, 64
SHAPES = (8, 8192, 64), (16, 2048, 64), (16, 8192, 64), (8, 2048, 64), (8, 8192, 128)

Attend: TypeAlias = Callable[[mx.array, mx.array, mx.array], mx.array]


def ours(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """By the kernel."""
    found = attended("cuda", queries, keys, values, queries.shape[3] ** -0.5)
    if found is None:
        raise RuntimeError("the kernel does not serve this")
    return found


def mlx(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """By MLX."""
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=queries.shape[3] ** -0.5)


def buffers(batch: int, rows: int, filled: int, width: int, layers: int) -> list[tuple[mx.array, mx.array]]:
    """Keys and values of some layers."""
    made = []
    for layer in range(layers):
        both = []
        for number in (2 * layer, 2 * layer + 1):
            each = mx.random.normal((batch, HEADS, rows, width), key=mx.random.key(number))
            each = each.astype(mx.bfloat16)
            each[:, :, filled:] = mx.nan
            both.append(each)
        mx.eval(both)
        made.append((both[0], both[1]))
    return made


def chain(attend: Attend, query: mx.array, held: list[tuple[mx.array, mx.array]], n: int) -> mx.array:
    """What one call found is what the next asks with, of another layer."""
    for call in range(CALLS):
        keys, values = held[call % len(held)]
        query = attend(query, keys[:, :, :n], values[:, :, :n])
    return query


def timed(work: Callable[[], mx.array]) -> Any:
    """Microseconds a call, ``[3]``."""
    mx.synchronize()
    times = [time.perf_counter()]
    found = work()
    times.append(time.perf_counter())
    mx.async_eval(found)
    times.append(time.perf_counter())
    mx.eval(found)
    times.append(time.perf_counter())
    return (np.array(times)[1:] - times[0]) / CALLS * 1e6


def of_the_gpu(work: Callable[[], mx.array]) -> float:
    """Microseconds of kernels a call, by CUPTI; NaN without torch."""
    if find_spec("torch") is None:
        return float("nan")
    torch = import_module("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        mx.eval(work())
        mx.synchronize()
    events = profile.profiler.kineto_results.events()
    on_gpu = [e.duration_ns() for e in events if e.device_type() == torch.autograd.DeviceType.CUDA]
    return float(sum(on_gpu) / CALLS / 1e3)


def measure(batch: int, rows: int, width: int) -> None:
    """All three at a shape."""
    n, size = rows - 3, 4 * batch * HEADS * rows * width
    layers = max(2, min(8, 2**28 // size))  # more than a GPU's cache holds
    query = 2 * mx.random.normal((batch, HEADS * GROUP, 1, width), key=mx.random.key(99))
    query = query.astype(mx.bfloat16)
    print(f"{batch} x {rows} rows, D {width}, {size / 1e6:.0f} MB a call:")
    for name, attend, room in (("ours", ours, 0), ("MLX, cuDNN", mlx, 0), ("MLX, its own", mlx, 1)):
        held = buffers(batch, rows + room, n, width, layers)
        keys, values = (each[:, :, :n] for each in held[0])
        found = np.array(attend(query, keys, values).astype(mx.float32), float)
        off = max(
            beyond(found[one], exact(*(a[one] for a in (query, keys, values))), mx.bfloat16)
            for one in (slice(0, 1), slice(batch - 1, batch))
        )
        work = lambda attend=attend, held=held: chain(attend, query, held, n)  # noqa: E731
        for _ in range(2):
            timed(work)
        python, host, done = np.median([timed(work) for _ in range(5)], axis=0)
        gpu = of_the_gpu(work)
        print(
            f"  {name:12s} {python:5.1f}, {host:5.1f}, {done:6.1f}; GPU {gpu:6.1f}; off {off:.1e}", flush=True
        )


if __name__ == "__main__":
    for shape in SHAPES:
        measure(*shape)
    print(f"mlx {version('mlx')}, {mx.device_info().get('device_name', '')}, {platform.platform()}")
