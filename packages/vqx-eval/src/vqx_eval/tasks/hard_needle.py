"""Needles whose question shares few words with them, among others of the same form (NoLiMa's concern,
arXiv 2502.05167)."""

import mlx.core as mx
import numpy as np

from vqx_eval.candidates import Candidate
from vqx_eval.forced import forced
from vqx_eval.haystack import DEPTHS, depth_of, even, hide, prose, spaced, split_answer
from vqx_eval.retrieval import PROTOCOLS, RETRIEVAL, figures_of
from vqx_eval.samples import Batch, Sample, half_of
from vqx_eval.task import Figure, Figures, Reference, Wanted, task
from vqx_eval.words import PEOPLE, THINGS

DECOYS = 3
FORMS = (
    (
        "{who} always leaves the spare key under the {what}.",
        "Where is the key of {who}? It lies beneath the",
    ),
    ("For the birthday that year {who} was given a {what}.", "Which present did {who} get? {who} got a"),
    ("{who} cannot stand the sight of a {what}.", "What is {who} afraid of? {who} is afraid of the"),
    ("The thief took only one thing from {who}, the {what}.", "What did {who} lose? {who} lost the"),
)
CHOICE = Figure("choice", "higher", "answers likelier than the decoys' (chance: 25 %)", percent=True)


def chosen(candidate: Candidate, batch: Batch, reference: Reference) -> list[Figures]:
    """Also the answer's first token against the decoys': a model may know and not say."""
    found = forced(candidate.start(), batch, keep=True)
    first = np.array(found.logits[0].astype(mx.float32))
    return [
        {
            "choice": float(all(row[sample.answer[0]] > row[decoy] for decoy in sample.marks["decoys"])),
            **figures,
        }
        for row, sample, figures in zip(first, batch.samples, figures_of(found), strict=True)
    ]


@task("hard-needle", "retrieval", chosen, (CHOICE, *RETRIEVAL), PROTOCOLS)
def samples(wanted: Wanted) -> list[Sample]:
    """A fact asked for in other words, among decoys of its form, in prose of mixed domains."""
    people, things = even(PEOPLE, wanted.encode), even(THINGS, wanted.encode)
    made = []
    for number in range(wanted.samples):
        draw = np.random.default_rng([wanted.seed, 17, number])
        fact, question = FORMS[(number // DEPTHS) % len(FORMS)]
        who = [people[place] for place in draw.permutation(len(people))[: 1 + DECOYS]]
        what = [things[place] for place in draw.permutation(len(things))[: 1 + DECOYS]]
        facts = [fact.format(who=one, what=thing) for one, thing in zip(who, what, strict=True)]
        asked = "\n\n" + question.format(who=who[0])
        hidden = hide(
            wanted,
            prose(wanted, draw),
            list(zip(spaced(len(facts), depth_of(number)), facts, strict=True)),
            head="",
            question=asked,
            answer=what[0],
        )
        turn = number // DEPTHS  # halves change places from one round of forms to the next
        half = half_of(turn + turn // len(FORMS))
        decoys = [split_answer(wanted.encode, asked, other)[1][0] for other in what[1:]]
        made.append(hidden.sample("hard-needle", number, half, depth=depth_of(number), decoys=decoys))
    return made
