"""What a token asks of Python in the caches and the attention of 16 layers, with no kernel run.

On a GPU a step costs what its host takes to ask for it. Here arrays of zeros stand in the place of what
kernels of CUDA would give, and what is evaluated is outside the clock: a 10th percentile, so that other work
of the machine does not count. Where a model writes down its products between two layers the host's caches are
cold: the second figure is the median of layers before each of which other Python ran and some megabytes were
read. Operations are those of a token's graph, matrix products of attention among it (a GPU has one kernel in
their place), most of them for the token of a cut.

Behind the caches of one sequence are those of a batch of eight, of different lengths, as mlx-lm's continuous
batching has them; there a token's mask is asked for with each layer's rows.

    python integration-tests/studies/python_of_a_token.py [rounds]
"""

import ast
import io
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import llama
from vqx.host.caches import cache_factory, own_caches
from vqx.host.models import random_llama, rotating_caches
from vqx.host.watching import watch_attention
from vqx_kernels.testing import pretended

ROWS, INTERVAL, LAYERS = 64, 32, 16
SEQUENCES, APART = 8, 5
METHODS = "streaming-llm", "h2o", "tova", "keyformer", "morphkv"
SIZES = {
    "hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 64, "num_hidden_layers": LAYERS, "tie_word_embeddings": True,
}  # fmt: skip


def drawn(length: int, sequences: int = 1) -> list[mx.array]:
    """Queries, keys and values of a layer."""
    rows = [mx.random.normal((sequences, heads, length, 16)).astype(mx.bfloat16) for heads in (8, 2, 2)]
    mx.eval(rows)
    return rows


MEMORY = np.ones(2**19)
"""4 MiB, more than a core's own caches."""


def other_work() -> None:
    """What leaves nothing of a layer in a core's caches."""
    ast.unparse(
        ast.parse("class A:\n    def f(self, x: int = 1) -> str:\n        return f'{x}' if x else g(*x)")
    )
    MEMORY.sum()


def forward(caches: list[Any], rows: list[mx.array], before: Callable[[], None] | None = None) -> Any:
    """What the layers' attention asks of their caches, as mlx-lm's llama does; what it gives, and µs a layer.

    ``before`` runs before each layer.
    """
    queries, keys, values = rows
    attend: Any = llama.scaled_dot_product_attention  # type: ignore[attr-defined]
    found, taken, start = [], [], time.perf_counter()
    mask = caches[0].make_mask(1, return_array=False, window_size=None) if keys.shape[2] == 1 else "causal"
    for cache in caches:
        if before is not None:
            before()
            start = time.perf_counter()
        _ = cache.offset, cache.offset
        read = cache.update_and_fetch(keys, values)
        found.append(attend(queries, *read, cache=cache, scale=0.125, mask=mask))
        if before is not None:
            taken.append(time.perf_counter() - start)
    each = sum(taken) if taken else time.perf_counter() - start
    return found, each / len(caches) * 1e6


def batched(make: Callable[[], list[Any]]) -> list[Any]:
    """Caches of sequences that come one after the other, some tokens apart, as mlx-lm's server has them."""
    found: list[Any] = []
    for number in range(SEQUENCES):
        caches = make()
        mx.eval(forward(caches, drawn(ROWS + 8 + 3 * number))[0])
        joining = [cache.merge([cache]) for cache in caches]
        for batch, one in zip(found, joining, strict=False):
            batch.extend(one)
        found = found or joining
        for _ in range(APART):
            mx.eval(forward(found, drawn(1, number + 1))[0])
    return found


def operations(arrays: list[mx.array]) -> int:
    """Nodes of the graph that evaluating these arrays would run."""
    drawing = io.StringIO()
    mx.export_to_dot(drawing, *arrays)
    return drawing.getvalue().count("shape=rectangle")


@pretended()
def main() -> None:
    model = random_llama(SIZES, mx.bfloat16)
    watch_attention(model)
    makers: dict[str, Callable[[], list[Any]]] = {
        "RotatingKVCache": lambda: rotating_caches(model, ROWS, 0),
        "KVCache": lambda: own_caches(model),
    }
    for method, positions in (*((name, "absolute") for name in METHODS), ("h2o", "compact")):
        for interval in (INTERVAL, 1):
            makers[f"{method}, {positions}, interval {interval}"] = cache_factory(
                model, method, budget=ROWS, interval=interval, positions=positions
            )
    one, several = drawn(1), drawn(1, SEQUENCES)
    caches: dict[str, list[Any]] = {}
    for name, make in makers.items():
        caches[name] = make()
        mx.eval(forward(caches[name], drawn(ROWS + 8))[0])
    for name, make in makers.items():
        if "compact" not in name:
            caches[f"{SEQUENCES} sequences, {name}"] = batched(make)
    tokens = {name: several if "sequences" in name else one for name in caches}
    for name, each in caches.items():
        for _ in range(2 * INTERVAL):
            mx.eval(forward(each, tokens[name])[0])
    counts: dict[str, list[int]] = {name: [] for name in caches}
    for name, each in caches.items():
        for _ in range(INTERVAL):
            found, _ = forward(each, tokens[name])
            counts[name].append(operations(found))
            mx.eval(found)
    times: dict[str, list[list[list[float]]]] = {
        name: [[[] for _ in range(INTERVAL)] for _ in range(2)] for name in caches
    }
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        for name, each in caches.items():
            for every, before in zip(times[name], (None, other_work), strict=True):
                for taken in every:
                    found, microseconds = forward(each, tokens[name], before)
                    taken.append(microseconds)
                    mx.eval(found)
    for name, (warm, cold) in times.items():
        low = sorted(sorted(taken)[len(taken) // 10] for taken in warm)
        among, mean = statistics.median(one for taken in cold for one in taken), statistics.fmean(low)
        print(f"{name}: {statistics.median(low):.1f} µs a layer, a cut {low[-1]:.1f}, on average {mean:.1f};")
        print(f"  {among:.1f} among other work;", end="")
        print(f" {statistics.median(counts[name]):.0f} operations, a cut {max(counts[name])}")


if __name__ == "__main__":
    main()
