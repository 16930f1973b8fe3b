"""What reading a prompt costs above mlx-lm's plain cache on a CPU: a few layers of SmolLM2's shapes, float32.

Processor time of reads in turns (median, least, most), the last layer's attention included, and peak memory;
``vqx bench --what prompt`` times a whole model, where a prompt of 8,192 tokens takes minutes.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import vqx  # noqa: F401  (before MLX: it shows MLX an optimised BLAS)

# isort: split
import mlx.core as mx
from vqx.host.caches import cache_factory, own_caches
from vqx.host.models import random_llama

SHAPES = {
    "hidden_size": 576, "num_hidden_layers": 4, "intermediate_size": 1536, "head_dim": 64, "vocab_size": 128,
    "num_attention_heads": 9, "num_key_value_heads": 3, "rope_theta": 100000.0, "tie_word_embeddings": True,
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--methods", nargs="+", default=["tova", "snapkv", "h2o", "keyformer"])
    asked.add_argument("--tokens", type=int, default=2048)
    asked.add_argument("--chunk", type=int, default=2048)
    asked.add_argument("--rows", type=int, default=512)
    asked.add_argument("--rounds", type=int, default=3)
    given = asked.parse_args()
    model: Any = random_llama(SHAPES, mx.float32)
    text = mx.random.randint(0, 100, (1, given.tokens))
    make: dict[str, Callable[[], list[Any]]] = {"KVCache": partial(own_caches, model)}
    make |= {name: cache_factory(model, name, budget=given.rows) for name in given.methods}
    times: dict[str, list[float]] = {name: [] for name in make}
    peaks = dict.fromkeys(make, 0)
    for number in range(given.rounds):
        for name in reversed([*make]) if number % 2 else make:
            caches, held = make[name](), mx.get_active_memory()
            mx.reset_peak_memory()
            start = time.process_time()
            for first in range(0, given.tokens, given.chunk):
                found = model.model(text[:, first : first + given.chunk], cache=caches)
                mx.eval(found, [cache.state for cache in caches])
            times[name].append(time.process_time() - start)
            peaks[name] = max(peaks[name], mx.get_peak_memory() - held)
            if name != "KVCache" and given.tokens > given.chunk + given.rows:
                assert all(cache.tokens_kept == given.rows for cache in caches)
            del caches, found
            mx.clear_cache()
    print(f"{given.tokens} tokens, {given.chunk} at a time, {given.rows} rows")
    print(f"mlx {version('mlx')}, {platform.platform()}")
    for name, each in times.items():
        ratios = [one / plain for one, plain in zip(each, times["KVCache"], strict=True)]
        ends = f"({min(ratios):.3f} to {max(ratios):.3f})"
        seconds, peak = statistics.median(each), peaks[name] / 1e6
        print(f"{name}: {seconds:.2f} s, {statistics.median(ratios):.3f} {ends}, {peak:.0f} MB at the peak")


if __name__ == "__main__":
    main()
