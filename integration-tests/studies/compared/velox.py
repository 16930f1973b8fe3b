"""VeloxQuant-MLX's eviction caches, of mlx-lm's kind, through its own builder and with its own defaults.

The rotary base is the model's, as its options ask. Streaming keeps its sinks beside its window, so that the
window is smaller by them. Prompts are read in mlx-lm's chunks of 2,048: every query of the prompt sees all
of it, and no smaller chunk is kinder to these caches. Two things are done for time alone, and change no
bit: keyformer's noise is drawn once for all layers, and caches that copy row by row do it on the CPU.
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import mlx.core as mx
from vqx_eval import Engine

from compared.ours import Cell

CHUNK = 2048
OPTIONS = {  # method: its dataclass of options, the option for the budget, rows that it keeps beside it
    "h2o": ("H2OOptions", "h2o_budget", 0),
    "snapkv": ("SnapKVOptions", "snap_budget", 0),
    "tova": ("TOVAOptions", "tova_budget", 0),
    "streaming_llm": ("StreamingLLMOptions", "stream_window_size", 4),
    "knorm": ("L2NormOptions", "knorm_budget", 0),
    "keyformer": ("KeyformerOptions", "keyformer_budget", 0),
    "morphkv": ("MorphKVOptions", "morphkv_budget", 0),
    "qfilters": ("QFiltersOptions", "qfilters_budget", 0),
}
ROW_BY_ROW = ("streaming_llm", "qfilters")  # in Python loops over sequences and heads: a launch for each row


class Beside:
    """A cache that works on the CPU while the model stays where it is."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        with mx.stream(mx.cpu):
            found: tuple[mx.array, mx.array] = self._cache.update_and_fetch(keys, values)
        return found


@cache
def remember_noise() -> None:
    """Keep the noise of keyformer, which each layer draws anew from the same seeds, one draw a row."""
    from veloxquant_mlx.quantizers import keyformer

    draw = keyformer._gumbel_at_batched

    @cache
    def drawn(seeds: tuple[int, ...], position: int) -> mx.array:
        noise = draw(list(seeds), position)
        mx.eval(noise)
        return noise

    keyformer._gumbel_at_batched = lambda seeds, position: drawn(tuple(seeds), position)


def caches(model: Any, method: str, budget: int) -> list[Any]:
    from veloxquant_mlx import KVCacheBuilder
    from veloxquant_mlx.cache import options
    from veloxquant_mlx.cache.base import KVCacheConfig

    kind, field, beside = OPTIONS[method]
    more = {field: budget - beside}
    base = f"{method}_rope_base"
    if hasattr(getattr(options, kind), base):
        more[base] = model.args.rope_theta
    warnings.filterwarnings("ignore", module="veloxquant_mlx")
    config = KVCacheConfig(method=method, options=getattr(options, kind)(**more))
    if method == "keyformer":
        remember_noise()
    made = KVCacheBuilder.for_model(model, config)
    return [Beside(one) if method in ROW_BY_ROW else one for one in made]


def cells(engine: Engine, budgets: Sequence[int]) -> Iterator[Cell]:
    theirs = Engine(engine.model, CHUNK)
    for method in OPTIONS:
        for budget in budgets:
            make = partial(caches, engine.model, method, budget)
            one = theirs.candidate(f"VeloxQuant-MLX {method}", budget, make, chunk=CHUNK)
            yield Cell(one.label, budget, lambda protocol, one=one: one)
