"""A table of keys and values that fills the whole context (Liu et al., arXiv 2307.03172)."""

from collections.abc import Iterator

import numpy as np

from vqx_eval.haystack import DEPTHS, depth_of, digits, hide
from vqx_eval.retrieval import PROTOCOLS, RETRIEVAL, measure
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted, task


@task("key-value", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def samples(wanted: Wanted) -> list[Sample]:
    """A table of numbers, one of them asked for: nothing in it is filler."""
    made = []
    for number in range(wanted.samples):
        draw = np.random.default_rng([wanted.seed, 7, number])
        key, value = digits(draw, 4), digits(draw, 4)
        hidden = hide(
            wanted,
            _rows(draw, key),
            [(depth_of(number), f"{key}: {value};")],
            head="A table of keys and values:\n\n",
            question=f"\n\nThe value of the key {key} is found in the table above. {key}:",
            answer=value,
        )
        made.append(hidden.sample("key-value", number, half_of(number // DEPTHS), depth=depth_of(number)))
    return made


def _rows(draw: np.random.Generator, taken: str) -> Iterator[str]:
    while True:
        key = digits(draw, 4)
        if key != taken:
            yield f"{key}: {digits(draw, 4)};"
