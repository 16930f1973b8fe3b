"""Fidelity: how far the next tokens of a text drift from what the full cache would have said."""

import numpy as np

from vqx_eval.candidates import Candidate
from vqx_eval.forced import forced
from vqx_eval.samples import Batch, Sample
from vqx_eval.task import Figure, Figures, Reference, Wanted, task
from vqx_eval.texts import windows

BINS = 8
"""Stretches of the continuation whose means are kept, to show drift by position."""


def measure(candidate: Candidate, batch: Batch, reference: Reference) -> list[Figures]:
    """Divergence, agreement and loss over the full cache's, as means and along the answer."""
    full = reference.forced().loss
    found = forced(candidate.start(), batch, reference.forced().logits)
    figures = {"KL": found.divergence, "agreement": found.agreement, "loss": found.loss - full}
    bins = min(BINS, full.shape[1])
    return [
        {name: float(values[row].mean()) for name, values in figures.items()}
        | {
            f"{name} by position": [float(part.mean()) for part in np.array_split(values[row], bins)]
            for name, values in figures.items()
        }
        | {"full loss": float(full[row].mean())}
        for row in range(len(batch.samples))
    ]


FIDELITY = (
    Figure("KL", "lower", "nats per token"),
    Figure("agreement", "higher", "tokens whose likeliest is the full cache's", percent=True),
    Figure("loss", "lower", "nats per token above the full cache"),
)


@task("continuation", "fidelity", measure, FIDELITY)
def samples(wanted: Wanted) -> list[Sample]:
    """Text goes on after a prompt: KL to the full cache, agreement with it, loss above it."""
    return windows("continuation", wanted)
