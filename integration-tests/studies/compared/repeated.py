"""kvzip, which reads its prompt twice: the second time to see which rows it takes to repeat it."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import vqx
from vqx_eval import CacheReading, Candidate, Engine

from compared.ours import Cell


class Repeated(CacheReading):
    """The first prompt is compressed but for its last token; what follows is read as ever."""

    def __init__(self, engine: Engine, tokenizer: Any, budget: int) -> None:
        caches = vqx.make_cache(engine.model, "kvzip", budget=budget)
        super().__init__(engine.model, caches, engine.chunk)
        self.tokenizer = tokenizer

    def prompt(self, tokens: list[list[int]]) -> mx.array:
        from vqx_kvzip import compress

        ids = mx.array(tokens)
        if self.caches[0].tokens_seen:
            return super().prompt(tokens)
        compress(self.model, self.tokenizer, self.caches, ids[:, :-1])
        return self.feed(ids[:, -1:])[:, -1]


def cells(engine: Engine, tokenizer: Any, budgets: Sequence[int]) -> Iterator[Cell]:
    for budget in budgets:
        one = Candidate("kvzip", budget, {}, partial(Repeated, engine, tokenizer, budget))
        yield Cell(one.label, budget, lambda protocol, one=one: one)
