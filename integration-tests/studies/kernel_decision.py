"""One decision of H2O on the CPU: MLX operations against the C loops of the same body, alternating.

n = 512 rows, D = 128, 8 heads, called from Python: the weights of one query, the mass, the row that goes, and
positions and mass once the next token stands in its place. Both give the same, and take turns, 30 calls each:
the decisions of a token in 30 layers. Prints microseconds (median, and the quarter to three quarters) by the
processor's clock and by the wall's, and how often the loops are faster.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
from vqx import eviction, kernels
from vqx.state.attention import Block
from vqx_h2o.method import H2OConfig, h2o

ROUNDS = 30
LAYERS = 30
CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}
METHOD = h2o(H2OConfig(budget=511, recent=8, normalise=None), itself=True)


def times(calls: Mapping[str, Callable[[], None]]) -> np.ndarray:
    """Microseconds of each call, by the target it runs on: ``[2 clocks, calls, ROUNDS * LAYERS]``."""
    spent = np.zeros((2, len(calls), ROUNDS * LAYERS))
    for number in range(0, ROUNDS * LAYERS, LAYERS):
        for one, (target, call) in enumerate(calls.items()):
            os.environ["VQX_DEVICE"] = target
            for each in range(number, number + LAYERS):
                before = [clock() for clock in CLOCKS.values()]
                call()
                after = [clock() for clock in reversed(CLOCKS.values())]
                spent[:, one, each] = 1e6 * (np.array(after[::-1]) - before)
    return spent


def main() -> None:
    """Measure and print."""
    print(f"mlx {version('mlx')}, {vqx.blas.preload().name}, {platform.platform()}, {os.cpu_count()} cores")
    print("median (quartiles) in us")
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
            mass = stats["mass"] + block.mass()
            score = eviction.guarded(mass, eviction.safe(METHOD, position, 511))
            slot = eviction.victim(score, position)
            place = mx.put_along_axis(position, slot, mx.array(512, mx.int32), axis=2)
            mass = mx.put_along_axis(mass, slot, mx.array(0.0), axis=2)
            mx.eval(mass, place, slot)
            found["operations"] = [slot, place]

        def loops(stats=stats, block=block, found=found) -> None:
            chosen = kernels.step(METHOD, stats, block, whole=True)
            if chosen is None:
                raise RuntimeError("the kernel did not run")
            mx.eval(chosen.columns["mass"], chosen.position, chosen.slot)
            found["loops"] = [chosen.slot, chosen.position]

        spent = times({"reference": operations, "host": loops})
        if not all(mx.array_equal(*both) for both in zip(*found.values(), strict=True)):
            raise RuntimeError("other rows go")
        for clock, each in zip(CLOCKS, spent, strict=True):
            low, median, high = np.quantile(each, (0.25, 0.5, 0.75), axis=1)
            said = [f"{median[i]:.0f} ({low[i]:.0f} to {high[i]:.0f})" for i in (0, 1)]
            ratio = median[0] / median[1]
            print(f"{dtype}, {clock}: MLX operations {said[0]}, C loops {said[1]}: {ratio:.1f} times faster")


if __name__ == "__main__":
    main()
