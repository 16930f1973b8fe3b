"""A prompt of 32,768 tokens that evicts at every chunk: live arrays, graph and memory stay put.

A random llama of 30 narrow layers, as many as SmolLM2 has; the graph is counted before each evaluation, as
mlx-lm evaluates every cache's state after a chunk, and arrays by what Python still holds.

    python integration-tests/studies/long_prompt.py --out docs/results
"""

import argparse
import gc
import io
import json
import time
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
from vqx.host.models import random_llama

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 30,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
TOKENS, CHUNK, BUDGET, ANSWER = 32768, 512, 256, 64


def nodes(arrays: list[Any]) -> int:
    """Operations that evaluating these arrays would run."""
    drawing = io.StringIO()
    mx.export_to_dot(drawing, *(array for array in arrays if isinstance(array, mx.array)))
    return drawing.getvalue().count("shape=rectangle")


def read(model: Any, name: str) -> dict[str, Any]:
    """What reading the prompt and writing an answer leaves, chunk by chunk."""
    prompt = mx.random.randint(0, 1000, (1, TOKENS), key=mx.random.key(1))
    caches = vqx.make_cache(model, name, budget=BUDGET)
    found: dict[str, list[int]] = {"graph nodes": [], "live arrays": [], "active bytes": []}
    start = time.perf_counter()
    lengths = [CHUNK] * (TOKENS // CHUNK) + [1] * ANSWER
    for number, length in enumerate(lengths):
        first = min(number * CHUNK, TOKENS - 1)
        logits = model(prompt[:, first : first + length], cache=caches)
        state = [array for cache in caches for array in cache.state]
        if number % 8 == 7:
            found["graph nodes"].append(nodes([logits, *state] if length > 1 else [logits]))
        mx.eval(logits, state)
        del logits, state
        if number % 8 == 7:
            gc.collect()
            found["live arrays"].append(sum(isinstance(one, mx.array) for one in gc.get_objects()))
            found["active bytes"].append(mx.get_active_memory())
    seen = {cache.tokens_seen for cache in caches}
    if seen != {TOKENS + ANSWER} or any(cache.tokens_kept > BUDGET for cache in caches):
        raise RuntimeError(f"{name}: {seen} tokens were read, and rows were kept beyond the budget")
    chunks = TOKENS // CHUNK // 8
    for what, each in found.items():
        if max(each[1:chunks]) > 1.01 * min(each[1:chunks]):
            raise RuntimeError(f"{name}: {what} grow over the prompt: {each}")
    most = {what: max(each) for what, each in found.items()}
    return {"method": name, **most, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    model = random_llama(SIZES, mx.float32)
    found = []
    for name in [name for name in vqx.names() if name in ("h2o", "tova", "fusion", "streaming-llm")]:
        found.append(read(model, name))
        print(found[-1], flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "long_prompt.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
