"""A prompt in token cadence: a forward of one token after another, against blocks decided by a kernel.

One layer, 8 heads of 4 query heads, D = 64, 2,048 tokens, 512 rows kept. Of the one-by-one forwards the last
256 are timed, in each of which a row goes. Prints microseconds a token, of a CPU those that this process had,
and whether both keep the same rows at the end.

    python integration-tests/studies/token_cadence.py
"""

import os
import platform
import time
from importlib.metadata import version

import vqx  # isort: skip - shows MLX an optimised BLAS before it loads

import mlx.core as mx
import numpy as np
from vqx import kernels
from vqx.options import Options
from vqx.state.cache import EvictingCache
from vqx.testing import Shape, Stream, stream
from vqx.testing.driving import forward, method_of

TOKENS, BUDGET, TIMED, CHUNK = 2048, 512, 256, 1024
ENGINE = Options(queries="model", cadence="token")
METHODS = ("h2o", "keyformer", "tova", "morphkv")


def read(cache: EvictingCache, tokens: Stream, first: int, last: int, step: int) -> float:
    """Seconds for the tokens ``first`` to ``last``, ``step`` at a time."""
    clock = time.process_time if mx.default_device() == mx.cpu else time.perf_counter
    before = clock()
    for at in range(first, last, step):
        forward(cache, tokens.cut(at, min(at + step, last)))
        mx.eval(cache.state)
    return clock() - before


def held(cache: EvictingCache) -> np.ndarray:
    return np.sort(np.array(cache.position), axis=2)


def main() -> None:
    """Measure and print."""
    where = kernels.at_once()
    print(f"mlx {version('mlx')}, {platform.platform()}, {os.cpu_count()} cores, {mx.default_device()}")
    print(f"| µs a token | one by one | {where} | times | NumPy | same rows |")
    print("|:---|---:|---:|---:|---:|:---|")
    tokens = stream("gaussian", 1, Shape(TOKENS + 1, batch=1, heads=8, group=4, width=64))
    mx.eval(tokens.queries, tokens.keys, tokens.values)
    usual = kernels.at_once
    for name in METHODS:
        method = method_of(name, budget=BUDGET)
        single, plain, many = (EvictingCache(method, ENGINE) for _ in range(3))
        read(single, tokens, 0, TOKENS - TIMED, 1)
        one = read(single, tokens, TOKENS - TIMED, TOKENS + 1, 1) / TIMED
        kernels.at_once = lambda: "reference"
        numpy = read(plain, tokens, 0, TOKENS + 1, CHUNK) / TOKENS
        kernels.at_once = usual
        read(EvictingCache(method, ENGINE), tokens, 0, TOKENS + 1, CHUNK)  # compiles
        block = read(many, tokens, 0, TOKENS + 1, CHUNK) / TOKENS
        same = np.array_equal(held(many), held(single))
        times = f"{one * 1e6:.0f} | {block * 1e6:.0f} | {one / block:.1f} | {numpy * 1e6:.0f}"
        print(f"| {name} | {times} | {same} |", flush=True)


if __name__ == "__main__":
    vqx.names()
    main()
