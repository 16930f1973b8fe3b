"""What every task of retrieval measures: was the answer said, and how probable was it."""

from vqx_eval.candidates import Candidate
from vqx_eval.forced import Forced, forced
from vqx_eval.samples import Batch, Protocol
from vqx_eval.task import Figure, Figures, Reference

PROTOCOLS: tuple[Protocol, ...] = ("aware", "agnostic")

RETRIEVAL = (
    Figure("match", "higher", "answers that greedy decoding gives in full", percent=True),
    Figure("tokens right", "higher", "tokens of the answer that are the likeliest", percent=True),
    Figure("log probability", "higher", "nats per token of the true answer"),
)


def measure(candidate: Candidate, batch: Batch, reference: Reference) -> list[Figures]:
    """Exact match of the likeliest token at every place of the answer, and its log probability.

    With the true tokens fed, the likeliest token matches everywhere exactly where greedy decoding would
    have written the answer.
    """
    return figures_of(forced(candidate.start(), batch))


def figures_of(found: Forced) -> list[Figures]:
    """Of each sample."""
    return [
        {
            "match": float(found.hit[row].min()),
            "log probability": -float(found.loss[row].mean()),
            "tokens right": float(found.hit[row].mean()),
        }
        for row in range(len(found.loss))
    ]
