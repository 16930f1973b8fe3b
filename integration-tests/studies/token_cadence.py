"""A prompt in token cadence: a forward of one token after another, against blocks decided by a kernel.

One layer, 8 heads of 4 query heads, D = 64, 2,048 tokens, 512 rows kept. Of the one-by-one forwards the last
256 are timed, in each of which a row goes. Prints microseconds a token, of a CPU those that this process had,
and whether both keep the same rows at the end. Then h2o once more, 8 heads of one query head and D = 128: its
blocks against what a reader of the paper would write, a step of MLX operations a token that gathers its rows.

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


def written_plainly(tokens: Stream, sinks: int, recent: int) -> np.ndarray:
    """The rows that h2o keeps, ``[B, H, n]``: one token after another, the least attended gone."""
    keys, values, width = tokens.keys[:, :, :0], tokens.values[:, :, :0], tokens.keys.shape[-1]
    place, gathered = mx.zeros(keys.shape[:3], mx.int32), mx.zeros(keys.shape[:3])
    for at in range(TOKENS):
        one = slice(at, at + 1)
        keys = mx.concatenate([keys, tokens.keys[:, :, one]], axis=2)
        values = mx.concatenate([values, tokens.values[:, :, one]], axis=2)
        place = mx.concatenate([place, mx.full((*place.shape[:2], 1), at, mx.int32)], axis=2)
        logits = tokens.queries[:, :, one] * width**-0.5 @ keys.swapaxes(2, 3)
        gathered = mx.pad(gathered, ((0, 0), (0, 0), (0, 1))) + mx.softmax(logits, axis=-1)[:, :, 0]
        if keys.shape[2] > BUDGET:
            safe = (place < sinks) | (place > at - recent)
            goes = mx.argmin(mx.where(safe, mx.inf, gathered), axis=2, keepdims=True)
            stay = mx.arange(BUDGET) + (mx.arange(BUDGET) >= goes)
            keys, values = (mx.take_along_axis(rows, stay[..., None], axis=2) for rows in (keys, values))
            place, gathered = (mx.take_along_axis(each, stay, axis=2) for each in (place, gathered))
        mx.eval(keys, values, place, gathered)
    return np.sort(np.array(place), axis=2)


def against_plain_steps() -> None:
    """Time h2o's blocks against ``written_plainly``, and say whether both keep the same rows."""
    tokens = stream("gaussian", 1, Shape(TOKENS + 1, batch=1, heads=8, group=1, width=128))
    mx.eval(tokens.queries, tokens.keys, tokens.values)
    method = method_of("h2o", budget=BUDGET, n_sink=4, recent=128, normalise=None)
    read(EvictingCache(method, ENGINE), tokens, 0, TOKENS + 1, CHUNK)  # compiles
    cache = EvictingCache(method, ENGINE)
    block = read(cache, tokens, 0, TOKENS + 1, CHUNK)
    clock = time.process_time if mx.default_device() == mx.cpu else time.perf_counter
    before = clock()
    kept = written_plainly(tokens, sinks=4, recent=128)
    plain = clock() - before
    same = np.array_equal(held(cache)[..., :-1], kept)  # the newest row came to settle the others
    print(
        f"h2o, one step of MLX operations a token: {plain * 1e3:.0f} ms,"
        f" in blocks {block * 1e3:.0f}: {plain / block:.0f} times; same rows: {same}"
    )


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
    against_plain_steps()
