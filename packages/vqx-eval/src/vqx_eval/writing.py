"""Text that the model writes by itself, with the same chances for every cache; and how it went wrong."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from vqx_eval.forced import WAIT, log_probabilities
from vqx_eval.reading import Reading

TEMPERATURE = 0.8
GRAM = 4
TAIL, LONGEST_PERIOD = 64, 32

Text = npt.NDArray[np.int64]


def write(
    reading: Reading, prompts: list[list[int]], length: int, never: Sequence[int], seed: int
) -> mx.array:
    """Sample ``length`` tokens ``[B, length]``; the draw depends on seed, row and step, not on the cache."""
    logits = reading.prompt(prompts)
    barred = mx.zeros(logits.shape[-1:]).at[mx.array(list(never) or [0])].add(-mx.inf if never else 0.0)
    written: list[mx.array] = []
    for step in range(length):
        noise = mx.random.gumbel(logits.shape, key=mx.random.key((seed << 20) + step))
        token = mx.argmax(logits.astype(mx.float32) / TEMPERATURE + noise + barred, axis=-1)
        written.append(token)
        mx.async_eval(token)
        if step % WAIT == 0:
            mx.eval(written)
        if step + 1 < length:
            logits = reading.feed(token[:, None])[:, -1]
    return mx.stack(written, axis=1)


def losses(reading: Reading, prompts: list[list[int]], text: mx.array, piece: int = 64) -> mx.array:
    """Nats per token of ``text`` ``[B, T]`` after the prompts, read in pieces: ``[B, T]``."""
    found = [_losses(reading.prompt(prompts)[:, None], text[:, :1])]
    for first in range(0, text.shape[1] - 1, piece):
        last = min(first + piece, text.shape[1] - 1)
        logits = reading.feed(text[:, first:last])
        found.append(_losses(logits, text[:, first + 1 : last + 1]))
        mx.eval(found[-1])
    return mx.concatenate(found, axis=1)


def repetition(text: Text) -> float:
    """The share of the text's runs of four tokens that it had before."""
    grams = [tuple(text[first : first + GRAM]) for first in range(len(text) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def loops(text: Text) -> bool:
    """Whether the text ends in one short stretch again and again."""
    tail = text[-TAIL:]
    return any(
        bool((tail[period:] == tail[:-period]).all())
        for period in range(1, min(LONGEST_PERIOD, len(tail)) + 1)
    )


def _losses(logits: mx.array, gold: mx.array) -> mx.array:
    return -mx.take_along_axis(log_probabilities(logits), gold[..., None], axis=-1)[..., 0]
