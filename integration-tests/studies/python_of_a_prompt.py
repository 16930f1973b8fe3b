"""What a chunk of a prompt asks of Python in the caches and the attention of 16 layers, with no kernel run.

As ``python_of_a_token.py``: arrays of zeros stand in the place of what kernels of CUDA would give, and what
is evaluated is outside the clock; the least of some rounds, for the first chunk, which settles nothing, and
for those that come after it. Operations are those of the graph of a forward and of what its caches hold.

    python integration-tests/studies/python_of_a_prompt.py [rounds]
"""

import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from python_of_a_token import LAYERS, ROWS, SIZES, drawn, forward, operations
from vqx.host.caches import cache_factory, own_caches
from vqx.host.models import random_llama
from vqx.host.watching import watch_attention
from vqx_kernels.testing import pretended

CHUNK, CHUNKS = 256, 4
METHODS = "streaming-llm", "tova", "snapkv", "h2o", "keyformer"


@pretended()
def main() -> None:
    model = random_llama(SIZES, mx.bfloat16)
    watch_attention(model)
    makers: dict[str, Callable[[], list[Any]]] = {"KVCache": lambda: own_caches(model)}
    for method in METHODS:
        makers[method] = cache_factory(model, method, budget=ROWS)
    rows = drawn(CHUNK)
    for name, make in makers.items():
        least, counts = [float("inf")] * CHUNKS, [0.0] * CHUNKS
        for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
            caches = make()
            for chunk in range(CHUNKS):
                if hasattr(caches[0], "plan"):
                    caches[0].make_mask(CHUNK)  # which begins a forward
                found, taken = forward(caches, rows)
                least[chunk] = min(least[chunk], taken)
                state = [array for cache in caches for array in cache.state if isinstance(array, mx.array)]
                counts[chunk] = counts[chunk] or operations([*found, *state]) / LAYERS
                mx.eval(found, state)
        later = min(least[1:]), counts[-1]
        print(f"{name}: {least[0]:.0f} µs and {counts[0]:.0f} operations a layer, then", end=" ")
        print(f"{later[0]:.0f} µs and {later[1]:.0f} operations")


if __name__ == "__main__":
    main()
