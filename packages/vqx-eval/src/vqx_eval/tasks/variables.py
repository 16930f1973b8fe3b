"""Variables set to numbers and to each other, after RULER's tracking (arXiv 2404.06654)."""

from itertools import pairwise

import numpy as np

from vqx_eval.haystack import DEPTHS, depth_of, digits, filler, hide
from vqx_eval.retrieval import PROTOCOLS, RETRIEVAL, measure
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted, task

HOPS = 4


@task("variables", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def samples(wanted: Wanted) -> list[Sample]:
    """A number passed on from variable to variable, 1 to 4 times, beside a chain that misleads."""
    made = []
    for number in range(wanted.samples):
        draw = np.random.default_rng([wanted.seed, 11, number])
        hops = 1 + (number // DEPTHS) % HOPS
        names = [chr(ord("A") + place) for place in draw.permutation(26)[: 2 * (hops + 1)]]
        true, false = names[: hops + 1], names[hops + 1 :]
        value = digits(draw)
        chains = [_chain(true, value), _chain(false, digits(draw))]
        start = 0.8 * depth_of(
            number
        )  # a chain must stand in order, so it begins here and goes on to the end
        depths = [start + (1 - start) * step / (hops + 1) for step in range(hops + 1)]
        facts = [(depth, fact) for chain in chains for depth, fact in zip(depths, chain, strict=True)]
        hidden = hide(
            wanted,
            filler(),
            facts,
            head="Remember which variable holds which number.\n\n",
            question=f"\n\nWhich number does variable {true[-1]} hold? Variable {true[-1]} holds the number",
            answer=value,
        )
        turn = number // DEPTHS  # halves change places from one round of hops to the next
        half = half_of(turn + turn // HOPS)
        made.append(hidden.sample("variables", number, half, depth=depth_of(number), hops=hops))
    return made


def _chain(names: list[str], value: str) -> list[str]:
    return [
        f"Variable {names[0]} holds the number {value}.",
        *(
            f"Variable {later} holds the same number as variable {earlier}."
            for earlier, later in pairwise(names)
        ),
    ]
