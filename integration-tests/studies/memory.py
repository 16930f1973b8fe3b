"""Peaks of memory that ``vqx.plan`` foretells beside those that MLX measures.

The embedded model and Llama shapes with random weights, one sequence and sixteen. On a CPU the shapes are cut
to a few layers in float32, so that they can be run; on a GPU they are whole, in bfloat16, and run twice: a
first run waits for kernels to be compiled, and may hold less.

    python integration-tests/studies/memory.py --layers 2 --dtype float32 --prompt 513 --chunk 128
"""

import argparse
import gc
import time
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
from mlx.utils import tree_map
from vqx.host.caches import cache_factory, own_caches
from vqx.host.embedded import load_embedded
from vqx.host.shapes import EMBEDDED, SHAPES, shaped


def measured(model: Any, fresh: Any, prompt: int, tokens: int, sequences: int, chunk: int) -> tuple[int, int]:
    """The peaks of the prompt and of the tokens after it, read and generated as mlx-lm does."""
    gc.collect()
    text = mx.random.randint(0, 1000, (sequences, prompt), key=mx.random.key(1))
    mx.eval(text)
    caches, peaks = fresh(), []
    mx.reset_peak_memory()
    for first in range(0, prompt - 1, chunk):
        model(text[:, first : min(first + chunk, prompt - 1)], cache=caches)
        mx.eval([cache.state for cache in caches])
    peaks.append(mx.get_peak_memory())
    mx.synchronize()  # what the prompt held is let go of a moment after its results are there
    mx.reset_peak_memory()
    token, before = text[:, -1:], None
    for _ in range(tokens):
        logits = model(token, cache=caches)[:, -1]
        token = mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1)[:, None]
        mx.async_eval(token)
        if before is not None:
            mx.eval(before)
        before = token
    mx.eval(token)
    return peaks[0], mx.get_peak_memory()


def models(names: list[str], layers: int | None, dtype: str | None) -> Any:
    """The models with weights, one after another."""
    for name in names:
        if name == EMBEDDED:
            yield name, load_embedded()[0]
            continue
        config = {**SHAPES[name], **({} if layers is None else {"num_hidden_layers": layers})}
        model = shaped(config, dtype=dtype)
        model.update(
            tree_map(lambda a: (0.02 * mx.random.normal(a.shape)).astype(a.dtype), model.parameters())
        )
        mx.eval(model.parameters())
        yield name if layers is None else f"{name}, {layers} layers", model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[EMBEDDED, *SHAPES])
    parser.add_argument("--methods", nargs="*", default=["h2o", "full"])
    parser.add_argument("--sequences", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--layers", type=int, help="of the shapes; the embedded model stays whole")
    parser.add_argument("--dtype", help="of the shapes' weights")
    for name, usual in (("prompt", 4096), ("chunk", 2048), ("budget", 1024), ("tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    print(
        f"mlx {mx.__version__} on {mx.device_info().get('device_name')}: a prompt of {asked.prompt} tokens in"
        f" chunks of {asked.chunk}, {asked.tokens} generated, budget {asked.budget}\n"
    )
    print("| model | method | sequences | prompt foretold | measured | decode foretold | measured | worst |")
    print("|---|---|---|---|---|---|---|---|")
    for name, model in models(asked.models, asked.layers, asked.dtype):
        for method in asked.methods:
            for sequences in asked.sequences:
                start = time.perf_counter()
                shape = {"prompt": asked.prompt, "tokens": asked.tokens, "chunk": asked.chunk}
                told = vqx.plan(model, method, budget=asked.budget, sequences=sequences, **shape)
                fresh: Any = lambda model=model: own_caches(model)  # noqa: E731
                if method != "full":
                    fresh = cache_factory(model, method, budget=asked.budget)
                planned = time.perf_counter() - start
                runs = 1 if mx.default_device() == mx.Device(mx.cpu) else 2
                peaks = [measured(model, fresh, sequences=sequences, **shape) for _ in range(runs)]
                prompt, decode = (max(each) for each in zip(*peaks, strict=True))
                off = max((told.prompt / prompt - 1, told.decode / decode - 1), key=abs)
                gigabytes = [told.prompt, prompt, told.decode, decode]
                cells = " | ".join(f"{one / 1e9:.3f}" for one in gigabytes)
                print(f"| {name} | {method} | {sequences} | {cells} | {off:+.1%} |", flush=True)
                print(f"  planned in {planned:.1f} s, run in {time.perf_counter() - start - planned:.1f} s")


if __name__ == "__main__":
    main()
