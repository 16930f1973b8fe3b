"""The one forward loop: read what comes before, then feed the true answer token by token.

Decoding evicts token by token, so that is how the answer is fed; logits are reduced on the device.
"""

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from vqx_eval.reading import Reading
from vqx_eval.samples import Batch

Floats = npt.NDArray[np.float32]
WAIT = 16
"""Steps that may be queued on the device at once."""


class Forced(NamedTuple):
    """What each token of the answer cost: ``[B, T]`` each."""

    loss: Floats  # nats
    hit: Floats  # 1 where the true token is the likeliest
    divergence: Floats  # KL(full || this), nats; 0 without a reference
    agreement: Floats  # 1 where the likeliest token is the full cache's
    logits: list[mx.array]  # T times [B, V], if they were to be kept


def forced(
    reading: Reading,
    batch: Batch,
    reference: list[mx.array] | None = None,
    *,
    keep: bool = False,
    after_prompt: Callable[[], None] = lambda: None,
) -> Forced:
    """Read a batch's prompts and force its answers.

    Args:
        reading: a fresh one.
        batch: samples of one shape.
        reference: the full cache's logits, T times ``[B, V]``.
        keep: keep this one's logits, as a reference for others.
        after_prompt: called when the answer is about to begin.
    """
    for prompt in batch.prompts:
        logits = reading.prompt(prompt)
    mx.eval(logits)
    after_prompt()
    answers = mx.array(batch.answers)
    length = answers.shape[1]
    steps: list[mx.array] = []
    kept: list[mx.array] = []
    for step in range(length):
        gold = answers[:, step]
        steps.append(_figures(logits, gold, reference[step] if reference else None))
        kept += [logits] if keep else []
        mx.async_eval(steps[-1], *kept[-1:])
        if step % WAIT == 0:
            mx.eval(steps)
        if step + 1 < length:
            logits = reading.feed(gold[:, None])[:, -1]
    columns = np.array(mx.stack(steps, axis=-1))  # [4, B, T]
    return Forced(columns[0], columns[1], columns[2], columns[3], kept)


def _figures(logits: mx.array, gold: mx.array, reference: mx.array | None) -> mx.array:
    """Loss, hit, divergence and agreement of one step, ``[4, B]``."""
    own = log_probabilities(logits)
    best = mx.argmax(own, axis=-1)
    loss = -mx.take_along_axis(own, gold[:, None], axis=-1)[:, 0]
    hit = (best == gold).astype(mx.float32)
    if reference is None:
        return mx.stack([loss, hit, mx.zeros_like(loss), mx.ones_like(loss)])
    full = log_probabilities(reference)
    divergence = (mx.exp(full) * (full - own)).sum(axis=-1)
    agreement = (best == mx.argmax(full, axis=-1)).astype(mx.float32)
    return mx.stack([loss, hit, divergence, agreement])


def log_probabilities(logits: mx.array) -> mx.array:
    """``[..., V]`` in float32."""
    wide = logits.astype(mx.float32)
    return wide - mx.logsumexp(wide, axis=-1, keepdims=True)
