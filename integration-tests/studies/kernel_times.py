"""Kernels against MLX operations on the device that MLX uses: a GPU, or a CPU with the host's loops.

8 heads in groups of 4, bfloat16: a decision of H2O, a turn of every key to its compact position, R-KV's
cosines, expected attention's logits, and a prompt's mass. Prints microseconds of one call of many in a graph,
Python included (median, least, most), and how far the results are apart.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version

import mlx.core as mx
import mlx.nn as nn
import vqx_kernels
from vqx import eviction
from vqx.expectation import expected_logits
from vqx.norms import unit
from vqx.state.attention import Block
from vqx.state.positions import rotary_of
from vqx_kernels import Asked, Guard, Rule, Turns, probe
from vqx_r_kv.method import spared

HEADS, GROUP = 8, 4
GPU = mx.default_device() == mx.gpu
TARGET = "host" if not GPU else "metal" if mx.metal.is_available() else "cuda"


def spent(work: Callable[[], mx.array], calls: int) -> list[float]:
    """Microseconds a call, of seven graphs of so many."""
    mx.eval(work())
    found = []
    for _ in range(7):
        start = time.perf_counter()
        mx.eval([work() for _ in range(calls)])
        found.append((time.perf_counter() - start) / calls * 1e6)
    return found


def told(what: str, operations: Callable[[], mx.array], kernel: Callable[[], mx.array], calls: int) -> None:
    """Time both and print."""
    said, times = [], []
    for name, target, work in (("operations", "reference", operations), ("kernel", TARGET, kernel)):
        os.environ["VQX_DEVICE"] = target
        times.append(spent(work, calls))
        said.append(f"{name} {statistics.median(times[-1]):.0f} ({min(times[-1]):.0f}, {max(times[-1]):.0f})")
    os.environ["VQX_DEVICE"] = "reference"
    first = operations().astype(mx.float32)
    os.environ["VQX_DEVICE"] = TARGET
    apart = mx.max(mx.abs(first - kernel().astype(mx.float32))) / mx.max(mx.abs(first))
    ratio = statistics.median(times[0]) / statistics.median(times[1])
    print(
        f"{what}: {', '.join(said)}: {ratio:.2f} times; apart {apart.item():.1e} of the greatest", flush=True
    )


def measure(batch: int, n: int, width: int) -> None:
    """Every kernel at n rows."""
    keys = mx.random.normal((batch, HEADS, n + 64, width)).astype(mx.bfloat16)[:, :, :n] + 0.5
    position = mx.contiguous(mx.broadcast_to(mx.arange(n, dtype=mx.int32), (batch, HEADS, n)))
    query = mx.random.normal((batch, HEADS, GROUP, 1, width)).astype(mx.bfloat16)
    mass, rows, scale = mx.random.uniform(shape=position.shape), unit(keys), width**-0.5
    root = mx.random.normal((batch, HEADS, GROUP, width, width)) / width
    mean, covariance = mx.random.normal((batch, HEADS, GROUP, width)), root @ root.swapaxes(-1, -2)
    rotary, steps = rotary_of(nn.RoPE(width), width), position // 2
    turns = Turns(*rotary.turns(1 << (n // 256).bit_length()))
    block = Block(query, keys, position, n - 1, scale, None)
    asked = Asked(query, keys, position, n - 1, scale)
    mx.eval(keys, position, query, mass, rows, mean, covariance, steps, turns)

    def decided() -> mx.array:
        total = mass + block.mass()
        score = eviction.guarded(total, (position < 4) | (position > n - 9))
        return mx.concatenate([total, 1e-6 * eviction.victim(score, position)], axis=-1)

    def stepped() -> mx.array:
        done = vqx_kernels.step(
            TARGET, asked, Rule("nothing"), probe.MASS, {"mass": mass}, Guard(4, 8), (1.0,)
        )
        return mx.concatenate([done.written["mass"], 1e-6 * done.slot], axis=-1)

    where = f"{batch} x {n} rows, D = {width}"
    told(f"decision, {where}", decided, stepped, 50)
    told(
        f"turn, {where}",
        lambda: rotary.turn_back(keys, steps),
        lambda: vqx_kernels.turned(TARGET, keys, steps, turns),
        50,
    )
    told(
        f"cosines, {where}",
        lambda: spared(rows, position, 0.3),
        lambda: vqx_kernels.spared(TARGET, rows, position, 0.3),
        3,
    )
    told(
        f"expected attention, {where}",
        lambda: expected_logits(keys, mean, covariance),
        lambda: vqx_kernels.expected(TARGET, keys, mean, covariance),
        10,
    )
    if GPU:  # the loops serve few queries
        many = mx.random.normal((batch, HEADS, GROUP, 2048, width)).astype(mx.bfloat16)
        prompt = Block(many, keys, position, n - 2048, scale, "causal")
        told(f"mass of 2,048 queries, {where}", prompt.mass, prompt.mass, 2)


def main() -> None:
    """Measure and print."""
    device = mx.device_info().get("device_name", "")
    print(f"{TARGET}, {device}, mlx {version('mlx')}, {platform.platform()}, us: median (least, most)")
    sizes = [(1, 2048, 64), (1, 8192, 64), (8, 2048, 64), (1, 2048, 128)] if GPU else [(1, 512, 64)]
    for batch, n, width in sizes:
        measure(batch, n, width)


if __name__ == "__main__":
    main()
