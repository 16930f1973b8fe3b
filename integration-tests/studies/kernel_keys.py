"""What keys say without queries, on the CPU: MLX operations against the C loops, alternating.

8 heads; expected attention's logits for groups of 4 query heads, R-KV's redundancy, and a turn of every key
to its compact position. Prints milliseconds by the processor's clock (median, least and most), and how often
the loops are faster.
"""

import os
import platform
import statistics
import time
from importlib.metadata import version

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
from vqx.expectation import expected_logits
from vqx.state.positions import rotary_of
from vqx_r_kv.method import redundancy

ROUNDS = 9


def main() -> None:
    """Measure and print."""
    print(f"mlx {version('mlx')}, {vqx.blas.preload().name}, {platform.platform()}, {os.cpu_count()} cores")
    print("median (least to most) in ms")
    mx.set_default_device(mx.cpu)
    for n, width in ((512, 64), (512, 128), (2048, 64)):
        keys = mx.random.normal((1, 8, n, width)) + 0.9  # cosines about 0.45, so that rows repeat each other
        mean, covariance = mx.random.normal((1, 8, 4, width)), mx.random.normal((1, 8, 4, width, width))
        position = mx.contiguous(mx.broadcast_to(mx.arange(n, dtype=mx.int32), (1, 8, n)))
        steps, rotary = position // 2, rotary_of(nn.RoPE(width), width)
        mx.eval(keys, mean, covariance, position, steps)
        for name, work, given in (
            ("expected attention", expected_logits, (keys, mean, covariance)),
            ("redundancy", redundancy, (keys, position, 0.5)),
            ("turn", rotary.placed, (keys, steps, n)),
        ):
            spent: dict[str, list[float]] = {"reference": [], "host": []}
            for turn in range(ROUNDS + 1):  # the first compiles
                for target, into in spent.items():
                    os.environ["VQX_DEVICE"] = target
                    start = time.process_time()
                    mx.eval(work(*given))
                    if turn:
                        into.append(1e3 * (time.process_time() - start))
            said = [f"{statistics.median(t):.1f} ({min(t):.1f} to {max(t):.1f})" for t in spent.values()]
            ratio = statistics.median(spent["reference"]) / statistics.median(spent["host"])
            case = f"{n} rows, D = {width}, {name}"
            print(f"{case}: MLX operations {said[0]}, C loops {said[1]}: {ratio:.1f} times faster")


if __name__ == "__main__":
    main()
