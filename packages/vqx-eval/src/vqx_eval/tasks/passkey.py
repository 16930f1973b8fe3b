"""A number between sentences that say nothing (Mohtashami and Jaggi, arXiv 2305.16300)."""

import numpy as np

from vqx_eval.haystack import DEPTHS, depth_of, digits, filler, hide
from vqx_eval.retrieval import PROTOCOLS, RETRIEVAL, measure
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted, task

HEAD = "There is a pass key hidden in the text below. Find it and remember it.\n\n"


@task("passkey", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def samples(wanted: Wanted) -> list[Sample]:
    """A pass key of 5 digits in filler, at depths of 0 to 100 %."""
    return passkeys("passkey", wanted, long=5)


@task("passkey-long", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def long_samples(wanted: Wanted) -> list[Sample]:
    """A pass key of 64 digits in filler: every one of its rows must stay."""
    return passkeys("passkey-long", wanted, long=64)


def passkeys(name: str, wanted: Wanted, long: int) -> list[Sample]:
    """One number for each sample, drawn by the seed and the sample's own number."""
    made = []
    for number in range(wanted.samples):
        key = digits(np.random.default_rng([wanted.seed, long, number]), long)
        again = f" Remember it. {key} is the pass key." if long < 10 else ""
        hidden = hide(
            wanted,
            filler(),
            [(depth_of(number), f"The pass key is {key}.{again}")],
            head=HEAD,
            question="\n\nWhat is the pass key? The pass key is",
            answer=key,
        )
        made.append(hidden.sample(name, number, half_of(number // DEPTHS), depth=depth_of(number)))
    return made
