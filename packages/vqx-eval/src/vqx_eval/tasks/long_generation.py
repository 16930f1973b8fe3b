"""Text written far past the budget: does it repeat itself, does it loop, would the full cache write it."""

import mlx.core as mx
import numpy as np

from vqx_eval.candidates import Candidate
from vqx_eval.samples import Batch, Sample
from vqx_eval.task import Figure, Figures, Reference, Wanted, task
from vqx_eval.texts import windows
from vqx_eval.writing import loops, losses, repetition, write

PROMPT = 64
"""Tokens that set the subject: the text itself is what fills the cache."""

WRITING = (
    Figure("loss under full", "lower", "nats per token of what was written, to the full cache"),
    Figure("repetition", "lower", "runs of four tokens that came before", percent=True),
    Figure("loops", "lower", "texts that end in a loop", percent=True),
)


def measure(candidate: Candidate, batch: Batch, reference: Reference) -> list[Figures]:
    """Sample a text at temperature 0.8, then let the full cache read it."""
    about = batch.samples[0].marks
    text = write(candidate.start(), batch.prompts[0], about["written"], about["never"], about["seed"])
    mx.eval(text)
    loss = np.array(losses(reference.full.start(), batch.prompts[0], text))
    return [
        {
            "loss under full": float(loss[row].mean()),
            "loss under full by position": [float(part.mean()) for part in np.array_split(loss[row], 8)],
            "repetition": repetition(tokens),
            "loops": float(loops(tokens)),
            "text": tokens.tolist(),
        }
        for row, tokens in enumerate(np.array(text))
    ]


@task("long-generation", "generation", measure, WRITING)
def samples(wanted: Wanted) -> list[Sample]:
    """The model writes on by itself, far past the budget, drawn alike for every cache."""
    marks = {
        "length": wanted.written,
        "written": wanted.written,
        "never": list(wanted.never),
        "seed": wanted.seed,
    }
    starts = windows("long-generation", wanted._replace(length=PROMPT, answer=1))
    return [sample._replace(answer=[], marks={**sample.marks, **marks}) for sample in starts]
