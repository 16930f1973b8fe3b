"""Measure a profile: one layer at a time sees only its sinks and its latest rows, the others see all."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from vqx import EvictingCache, Method, Options, Scorer
from vqx.host.layers import own_caches

CHUNK, PIECE = 512, 16
KEY = 5
"""Digits of a planted key."""


class Samples(NamedTuple):
    """Texts to read on, and texts with a planted key to be asked for; rows of equal length."""

    text: mx.array  # [N, prompt + after]
    after: int
    asked: mx.array  # [N, prompt + question + KEY]


def samples(texts: Sequence[str], tokenizer: Any, prompt: int, after: int, seed: int = 0) -> Samples:
    """Cut texts to length, and plant a key in each at a depth of its own.

    Raises:
        ValueError: texts that are all shorter than ``prompt + after`` tokens.
    """
    draw, long, asked = random.Random(seed), [], []
    encoded = [_encode(tokenizer, text) for text in texts]
    for tokens in (tokens for tokens in encoded if len(tokens) >= prompt + after):
        long.append(tokens[: prompt + after])
        key = "".join(draw.choice("0123456789") for _ in range(KEY))
        fact = _encode(tokenizer, f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n")
        question = _encode(tokenizer, "\nWhat is the pass key? The pass key is ")
        answer = _encode(tokenizer, key)
        room = prompt - len(fact)
        depth = draw.randrange(room)
        asked.append([*tokens[:depth], *fact, *tokens[depth:room], *question, *answer])
    if not long:
        raise ValueError(f"every text is shorter than {prompt + after} tokens: give longer ones")
    length = min(map(len, asked))  # a key's digits may take fewer tokens: those that do are left out
    return Samples(mx.array(long), after, mx.array([row for row in asked if len(row) == length]))


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def measured(
    model: nn.Module, given: Samples, rows: int, evicting: Sequence[int]
) -> Iterator[tuple[float, float]]:
    """First the full cache's loss and recall, then each layer's alone, in nats."""
    for limited in (None, *evicting):
        yield (
            _loss(model, given.text, given.after, _caches(model, limited, rows)),
            _loss(model, given.asked, KEY, _caches(model, limited, rows)),
        )


def _caches(model: nn.Module, limited: int | None, rows: int) -> list[Any]:
    """The model's own caches, but for one layer that keeps its sinks and its latest rows."""
    caches = own_caches(model)
    if limited is not None:
        latest = Method(Scorer(score=lambda held: 0.0), rows, n_sink=4)
        caches[limited] = EvictingCache(latest, Options(queries="keys"), number=limited)
    return caches


def _loss(model: nn.Module, tokens: mx.array, after: int, caches: list[Any]) -> float:
    """Nats per token of the last ``after``, the others read in chunks."""
    length = tokens.shape[1]
    prompt = length - after - 1
    for first in range(0, prompt, CHUNK):
        model(tokens[:, first : min(first + CHUNK, prompt)], cache=caches)
        mx.eval([cache.state for cache in caches])
    total = mx.array(0.0)
    for first in range(prompt, length - 1, PIECE):
        last = min(first + PIECE, length - 1)
        logits = model(tokens[:, first:last], cache=caches).astype(mx.float32)
        total = total + nn.losses.cross_entropy(logits, tokens[:, first + 1 : last + 1], reduction="sum")
        mx.eval(total)
    nats: float = (total / (tokens.shape[0] * after)).item()  # type: ignore[assignment]
    return nats
