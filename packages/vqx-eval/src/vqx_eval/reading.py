"""How a batch is read: the few calls that an engine must answer, and mlx-lm's models answering them."""

from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

Tokens = list[list[int]]
"""Token numbers ``[B, S]``, rows of one length."""

Advance = Callable[[int], None]
"""Tokens read along the sequence -> None: moves a progress bar."""


class Reading(Protocol):
    """One batch under way in some engine, its cache included; logits come back as MLX arrays."""

    def prompt(self, tokens: Tokens) -> mx.array:
        """Read a prompt ``[B, S]`` to its end; the next token's logits ``[B, V]``."""

    def feed(self, tokens: mx.array) -> mx.array:
        """Read ``[B, S]`` tokens that go on; logits ``[B, S, V]``."""


class CacheReading:
    """A batch read by a model of mlx-lm with any caches.

    A prompt is read as mlx-lm reads it: in chunks, its last token alone, since the first call with a single
    token is the sign that the prompt is over.
    """

    def __init__(
        self, model: nn.Module, caches: list[Any], chunk: int, advance: Advance = lambda tokens: None
    ) -> None:
        self.model, self.caches, self.chunk, self.advance = model, caches, chunk, advance

    def prompt(self, tokens: Tokens) -> mx.array:
        ids = mx.array(tokens)
        most = ids.shape[1] - 1
        for first in range(0, most, self.chunk):
            last = min(first + self.chunk, most)
            self.model(ids[:, first:last], cache=self.caches)
            mx.eval([cache.state for cache in self.caches])
            self.advance(last - first)
        return self.feed(ids[:, most:])[:, -1]

    def feed(self, tokens: mx.array) -> mx.array:
        logits: mx.array = self.model(tokens, cache=self.caches)
        self.advance(tokens.shape[1])
        return logits
