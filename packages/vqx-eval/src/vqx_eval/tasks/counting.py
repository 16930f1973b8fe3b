"""Words that come often among words that do not, after RULER's common words (arXiv 2404.06654)."""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from vqx_eval.haystack import even, hide
from vqx_eval.retrieval import PROTOCOLS, RETRIEVAL, measure
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted, task
from vqx_eval.words import THINGS

SHARE = 0.3


@task("common-words", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def samples(wanted: Wanted) -> list[Sample]:
    """A list of words, of which one comes again and again; no single row holds the answer."""
    words = even(THINGS, wanted.encode)
    made = []
    for number in range(wanted.samples):
        draw = np.random.default_rng([wanted.seed, 13, number])
        common, *others = (words[place] for place in draw.permutation(len(words)))
        hidden = hide(
            wanted,
            _list(draw, common, others),
            [],
            head="A list of words:\n\n",
            question="\n\nWhich word of the list comes most often? The word that comes most often is",
            answer=common,
        )
        made.append(hidden.sample("common-words", number, half_of(number)))
    return made


def _list(draw: np.random.Generator, common: str, others: list[str]) -> Iterator[str]:
    """Words with commas; three in ten are the common one, the others come in turn."""
    turn = chain.from_iterable(iter(lambda: others, None))
    while True:
        yield f"{common if draw.random() < SHARE else next(turn)},"
