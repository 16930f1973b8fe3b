"""A decode step on a GPU against mlx-lm's rotating cache of the same length, alternating in one process.

Llama-3.2-1B shapes with random weights in bfloat16; medians of three rounds of 64 steps. On a CPU it says so
and ends.

    python integration-tests/studies/decode.py --out docs/results
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
from mlx_lm.models import llama
from mlx_lm.models.cache import RotatingKVCache

SHAPES = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}


def fill(model: Any, caches: list[Any], tokens: int, batch: int) -> mx.array:
    """Read a random prompt; the next token."""
    prompt = mx.random.randint(0, 1000, (batch, tokens), key=mx.random.key(1))
    for first in range(0, tokens, 2048):
        model(prompt[:, first : first + 2048], cache=caches)
        mx.eval([cache.state for cache in caches])
    return mx.zeros((batch, 1), mx.int32)


def steps(model: Any, caches: list[Any], token: mx.array, count: int) -> tuple[float, mx.array]:
    """Decode as mlx-lm does, one step ahead; milliseconds per step."""
    start, before = time.perf_counter(), None
    for _ in range(count):
        token = mx.argmax(model(token, cache=caches)[:, -1:], axis=-1)
        mx.async_eval(token)
        if before is not None:
            mx.eval(before)
        before = token
    mx.eval(token)
    return (time.perf_counter() - start) / count * 1e3, token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    if mx.default_device() == mx.cpu:
        print("decode.py needs a GPU: nothing was measured")
        return
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(SHAPES))
    model.set_dtype(mx.bfloat16)
    found = []
    for batch in (1, 8):
        for rows in (512, 2048, 8192):
            running: dict[str, Any] = {"rotating": [RotatingKVCache(rows) for _ in model.layers]}
            for name in vqx.names():
                for interval in (1, 32):
                    caches = vqx.make_cache(model, name, budget=rows, interval=interval)
                    running[f"{name}/{interval}"] = caches
            tokens = {name: fill(model, caches, rows + 64, batch) for name, caches in running.items()}
            times: dict[str, list[float]] = {name: [] for name in running}
            for round_ in range(4):  # the first warms up
                for name, caches in running.items():
                    took, tokens[name] = steps(model, caches, tokens[name], 64)
                    times[name] += [took] if round_ else []
            base = statistics.median(times["rotating"])
            for name, each in times.items():
                took = statistics.median(each)
                row = {"B": batch, "n": rows, "cache": name, "ms": took, "ratio": took / base}
                found.append(row)
                print(row, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "decode.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
