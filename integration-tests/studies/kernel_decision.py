"""One decision of H2O on the CPU: MLX operations against the C loops of the same body, alternating.

n = 512 rows, D = 128, 8 heads, called from Python: the weights of one query, the mass, the row that goes, and
positions and mass once the next token stands in its place. Both give the same, and take turns, a call each.
Prints microseconds (median, and the quarter to three quarters), and how often the loops are faster.
"""

import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version

import mlx.core as mx
import numpy as np
from vqx import eviction, kernels
from vqx.state.attention import Block
from vqx_h2o.method import H2OConfig, h2o

ROUNDS = 300
METHOD = h2o(H2OConfig(budget=511, recent=8, normalise=None), itself=True)


def times(calls: list[Callable[[], None]]) -> list[np.ndarray]:
    """Seconds of each call, all in turn."""
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, into in zip(calls, spent, strict=True):
            start = time.perf_counter()
            call()
            into.append(time.perf_counter() - start)
    return [np.array(one) for one in spent]


def main() -> None:
    """Measure and print."""
    print(f"mlx {version('mlx')}, {platform.platform()}, {os.cpu_count()} cores, median (quartiles) in us")
    mx.set_default_device(mx.cpu)
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        queries = mx.random.normal((1, 8, 1, 1, 128)).astype(dtype)
        keys = mx.random.normal((1, 8, 512, 128)).astype(dtype)
        position = mx.contiguous(mx.broadcast_to(mx.arange(512, dtype=mx.int32), (1, 8, 512)))
        stats = {"mass": mx.random.uniform(shape=(1, 8, 512))}
        block = Block(queries, keys, position, 511, 128**-0.5, None)
        mx.eval(queries, keys, position, stats)
        found: dict[str, list[mx.array]] = {}

        def operations(stats=stats, block=block, position=position, found=found) -> None:
            os.environ["VQX_DEVICE"] = "reference"
            mass = stats["mass"] + block.mass()
            score = eviction.guarded(mass, eviction.safe(METHOD, position, 511))
            slot = eviction.victim(score, position)
            place = mx.put_along_axis(position, slot, mx.array(512, mx.int32), axis=2)
            mass = mx.put_along_axis(mass, slot, mx.array(0.0), axis=2)
            mx.eval(mass, place, slot)
            found["operations"] = [slot, place]

        def loops(stats=stats, block=block, found=found) -> None:
            os.environ["VQX_DEVICE"] = "host"
            chosen = kernels.step(METHOD, stats, block, whole=True)
            if chosen is None:
                raise RuntimeError("the kernel did not run")
            mx.eval(chosen.columns["mass"], chosen.position, chosen.slot)
            found["loops"] = [chosen.slot, chosen.position]

        operations()
        loops()
        if not all(mx.array_equal(*both) for both in zip(*found.values(), strict=True)):
            raise RuntimeError("other rows go")
        slow, fast = (one * 1e6 for one in times([operations, loops]))
        ratio = np.median(slow) / np.median(fast)
        said = [
            f"{np.median(t):.0f} ({np.quantile(t, 0.25):.0f} to {np.quantile(t, 0.75):.0f})"
            for t in (slow, fast)
        ]
        print(f"{dtype}: MLX operations {said[0]}, C loops {said[1]}: {ratio:.1f} times faster")


if __name__ == "__main__":
    main()
