"""A number of five digits between sentences that say nothing (Mohtashami and Jaggi, arXiv 2305.16300)."""

import numpy as np

from vqx_eval.haystack import depths, filler, hide
from vqx_eval.retrieval import PROTOCOLS, RETRIEVAL, measure
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted, task

HEAD = "There is a pass key hidden in the text below. Find it and remember it.\n\n"
DEPTHS = 5


@task("passkey", measure, RETRIEVAL, PROTOCOLS)
def samples(wanted: Wanted) -> list[Sample]:
    """A pass key of 5 digits in filler, at depths of 0 to 100 %."""
    return passkeys("passkey", wanted, digits=5)


def passkeys(name: str, wanted: Wanted, digits: int) -> list[Sample]:
    """One number for each sample, drawn by the seed and the sample's own number."""
    made = []
    for number in range(wanted.samples):
        draw = np.random.default_rng([wanted.seed, digits, number])
        key = "".join(str(digit) for digit in draw.integers(0, 10, digits))
        depth = depths(number, DEPTHS)
        hidden = hide(
            wanted,
            filler(),
            [(depth, f"The pass key is {key}. Remember it. {key} is the pass key.")],
            head=HEAD,
            question="\n\nWhat is the pass key? The pass key is",
            answer=key,
        )
        made.append(
            Sample(
                name, number, half_of(number // DEPTHS), *hidden, {"depth": depth, "length": wanted.length}
            )
        )
    return made
