"""Needles whose question shares few words with them, among others of the same form (NoLiMa's concern,
arXiv 2502.05167)."""

import numpy as np

from vqx_eval.haystack import DEPTHS, depth_of, even, hide, prose, spaced
from vqx_eval.retrieval import PROTOCOLS, RETRIEVAL, measure
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted, task
from vqx_eval.words import PEOPLE, THINGS

DECOYS = 3
FORMS = (
    (
        "{who} always leaves the spare key under the {what}.",
        "\n\nIf {who} were locked out one night, where should we look? Right beneath the",
    ),
    (
        "For the birthday that year {who} was given a {what}.",
        "\n\nWhat present did {who} unwrap when turning one year older? It was a",
    ),
    (
        "{who} cannot stand the sight of a {what}.",
        "\n\nWhich thing would frighten {who} the most? Certainly a",
    ),
    (
        "The thief took only one thing from {who}, the {what}.",
        "\n\nWhat was stolen from the home of {who}? It was the",
    ),
)


@task("hard-needle", "retrieval", measure, RETRIEVAL, PROTOCOLS)
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
        hidden = hide(
            wanted,
            prose(wanted, draw),
            list(zip(spaced(len(facts), depth_of(number)), facts, strict=True)),
            head="",
            question=question.format(who=who[0]),
            answer=what[0],
        )
        turn = number // DEPTHS  # halves change places from one round of forms to the next
        half = half_of(turn + turn // len(FORMS))
        made.append(hidden.sample("hard-needle", number, half, depth=depth_of(number)))
    return made
