"""What is compared: the full cache, mlx-lm's rotating cache, and methods with their settings."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import mlx.nn as nn
from vqx import Setting
from vqx.host.caches import cache_factory, own_caches
from vqx.host.models import rotating_caches
from vqx.settings import label

from vqx_eval.reading import Advance, CacheReading
from vqx_eval.samples import Protocol

FULL = "full cache"
ROTATING = "RotatingKVCache"
STREAMING = "streaming-llm"
SINKS = 4


class Candidate(NamedTuple):
    """A name, what it was made with, and how a batch is begun with it."""

    label: str
    budget: int | None  # None keeps everything
    options: Mapping[str, Any]
    start: Callable[[], Any]
    """Begins a batch: a :class:`Reading`; without a model, one layer's cache."""


class Engine(NamedTuple):
    """Makes candidates for a model of mlx-lm."""

    model: nn.Module
    chunk: int = 512
    advance: Advance = lambda tokens: None

    def candidate(
        self, name: str, budget: int | None, make: Callable[[], list[Any]], **options: Any
    ) -> Candidate:
        """Any caches at all: ``make`` returns fresh ones, one per cache of the model."""
        return Candidate(name, budget, options, lambda: self._reading(make()))

    def full(self) -> Candidate:
        return self.candidate(FULL, None, partial(own_caches, self.model))

    def rotating(self, budget: int) -> Candidate:
        """mlx-lm's own bounded cache of that many rows, 4 of them the first."""
        make = partial(rotating_caches, self.model, budget, SINKS)
        return self.candidate(ROTATING, budget, make, keep=SINKS)

    def evicting(self, setting: Setting, budget: int, protocol: Protocol = "plain") -> Candidate:
        """A method at a budget; where the question is in the prompt it is cut once, after the question.

        Raises:
            ValueError: a budget or an option that the method or the model refuses.
        """
        options: dict[str, Any] = dict(setting.options)
        if protocol == "aware" and options.get("cadence") != "token":
            options = {"prompt": "whole", **options}
        make = cache_factory(self.model, setting.method, budget=budget, **options)
        return self.candidate(label(setting), budget, make, **options)

    def _reading(self, caches: list[Any]) -> CacheReading:
        return CacheReading(self.model, caches, self.chunk, self.advance)
