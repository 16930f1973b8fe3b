"""A text longer than the model was trained for, read in pieces: positions as they come, and compact."""

import mlx.core as mx
import numpy as np
from vqx import Setting

from vqx_eval.candidates import Candidate
from vqx_eval.forced import log_probabilities
from vqx_eval.samples import Batch, Sample
from vqx_eval.task import Figure, Figures, Reference, Wanted, task
from vqx_eval.texts import endless

PIECE = 64
"""Tokens read at once; rows go after each piece."""
BINS = 16
STREAMS = 4
"""At most so many: a stream is long, and its tokens are many samples."""

STREAM = (
    Figure("loss at the end", "lower", "nats per token of the last quarter"),
    Figure("loss", "lower", "nats per token of the whole stream"),
)


def absolute_and_compact(setting: Setting) -> list[Setting]:
    """Both, unless the setting names one."""
    if "positions" in setting.options or setting.options.get("cadence") == "token":
        return [setting]
    return [setting, Setting(setting.method, {**setting.options, "positions": "compact"})]


def measure(candidate: Candidate, batch: Batch, reference: Reference) -> list[Figures]:
    """Loss of every token given those before it, by position."""
    tokens = mx.array(batch.prompts[0])
    reading = candidate.start()
    found: list[mx.array] = []
    for first in range(0, tokens.shape[1] - 1, PIECE):
        last = min(first + PIECE, tokens.shape[1] - 1)
        own = log_probabilities(reading.feed(tokens[:, first:last]))
        gold = tokens[:, first + 1 : last + 1, None]
        found.append(-mx.take_along_axis(own, gold, axis=-1)[..., 0])
        mx.eval(found[-1])
    loss = np.array(mx.concatenate(found, axis=1))
    return [
        {
            "loss": float(row.mean()),
            "loss at the end": float(row[-len(row) // 4 :].mean()),
            "loss by position": [float(part.mean()) for part in np.array_split(row, BINS)],
        }
        for row in loss
    ]


@task("stream", "generation", measure, STREAM, variants=absolute_and_compact)
def samples(wanted: Wanted) -> list[Sample]:
    """A long text read in pieces of 64 tokens, with absolute and with compact positions."""
    return endless("stream", wanted, min(wanted.samples, STREAMS))
