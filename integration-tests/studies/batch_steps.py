"""What a token of mlx-lm's continuous batching costs above mlx-lm's own batched caches of as many rows.

``BatchGenerator`` generates for sequences of different lengths, all of them longer than what is kept, which
join one after the other, with layers of SmolLM2's shapes in float32; times of steps in turns (median, least,
most), divided by those with ``BatchRotatingKVCache``, one contender after the other beside that one. Caches
are filled with random rows, as ``vqx bench`` fills them. On a GPU, in a well-known model's shapes, bfloat16:

    python integration-tests/studies/batch_steps.py --model llama-3.2-1b --clock wall h2o h2o:interval=32
"""

import argparse
import platform
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import vqx  # noqa: F401  (before MLX: it shows MLX an optimised BLAS)

# isort: split
import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from vqx.host.caches import cache_factory, own_caches
from vqx.host.models import random_llama, rotating_caches
from vqx.settings import settings
from vqx_bench.filling import fill, sizes_of
from vqx_bench.measuring import CLOCKS, alternate, milliseconds
from vqx_bench.shapes import subject

SHAPES = {
    "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536, "head_dim": 64,
    "vocab_size": 49152, "num_attention_heads": 9, "num_key_value_heads": 3, "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
ROTATING = "BatchRotatingKVCache"


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("methods", nargs="*", default=["h2o", "h2o:interval=32", "tova", "tova:interval=32"])
    asked.add_argument("--model", help="shapes by a name of ``vqx bench``, in bfloat16, or a model to load")
    asked.add_argument("--sequences", type=int, default=8)
    asked.add_argument("--rows", type=int, default=512)
    asked.add_argument(
        "--apart", type=int, default=7, help="tokens between one sequence's coming and the next"
    )
    asked.add_argument("--layers", type=int, default=30)
    asked.add_argument("--vocabulary", type=int, default=49152)
    asked.add_argument("--steps", type=int, default=32)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--clock", choices=CLOCKS, default="processor")
    given = asked.parse_args()
    sizes = {"num_hidden_layers": given.layers, "vocab_size": given.vocabulary}
    small = given.model is None
    model: Any = random_llama({**SHAPES, **sizes}, mx.float32) if small else subject(given.model).model
    make: dict[str, Callable[[], list[Any]]] = {
        ROTATING: partial(rotating_caches, model, given.rows, 0),
        "BatchKVCache": partial(own_caches, model),
    }
    for text, setting in zip(given.methods, settings(given.methods), strict=True):
        make[text] = cache_factory(model, setting.method, budget=given.rows, **setting.options)

    def steps(running: BatchGenerator) -> float:
        def run() -> None:
            for _ in range(given.steps):
                running.next_generated()

        return milliseconds(run, given.steps, given.clock)

    print(f"{' '.join(sys.argv)}: mlx {version('mlx')}, mlx-lm {version('mlx-lm')}, {platform.platform()}")
    base = started(model, make.pop(ROTATING), False, given)
    for name, each in make.items():
        running = started(model, each, name == "BatchKVCache", given)
        both = {ROTATING: partial(steps, base), name: partial(steps, running)}
        found = alternate(both, ROTATING, given.rounds)
        if name in given.methods:
            for cache in running._generation_batch.prompt_cache:
                assert set(cache.tokens_kept) <= {*range(given.rows, given.rows + 33)}, cache.tokens_kept
                assert min(cache.tokens_seen) > given.rows + 33
        one, ends = found[name], f"({found[name].ratio_least:.3f} to {found[name].ratio_most:.3f})"
        beside = f"beside {found[ROTATING].median:.2f} ms"
        print(
            f"{name:24} {one.median:7.2f} ms {beside}  {one.ratio:.3f} {ends}  {one.peak / 1e6:.0f} MB",
            flush=True,
        )


def started(model: Any, make: Callable[[], list[Any]], unbounded: bool, given: Any) -> BatchGenerator:
    """A generator whose sequences have begun; where nothing is evicted, they hold no more rows."""
    sizes = sizes_of(model)
    generator = BatchGenerator(model, completion_batch_size=given.sequences)
    for number in range(given.sequences):
        caches, later = make(), given.apart * number
        fill(
            caches,
            sizes,
            1,
            given.rows - given.apart * given.sequences if unbounded else given.rows + 64 + later,
        )
        generator.insert([[number]], [10**6], caches=[caches])
        for _ in range(1 + given.apart):
            generator.next_generated()
    return generator


if __name__ == "__main__":
    main()
