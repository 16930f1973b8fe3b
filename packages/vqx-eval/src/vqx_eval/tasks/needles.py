"""Facts in mixed prose, after RULER's needles (Hsieh et al., arXiv 2404.06654), in our own words."""

import numpy as np

from vqx_eval.haystack import DEPTHS, depth_of, digits, even, hide, prose, spaced
from vqx_eval.retrieval import PROTOCOLS, RETRIEVAL, measure
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted, task
from vqx_eval.words import CITIES

HEAD = "Some numbers of cities are hidden in the text below. Remember them.\n\n"
MANY = 4


@task("needle-prose", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def single(wanted: Wanted) -> list[Sample]:
    """One fact in prose of mixed domains."""
    return _needles("needle-prose", wanted, cities=1, numbers=1, asked=1)


@task("multi-key", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def keys(wanted: Wanted) -> list[Sample]:
    """Four facts of one form, one of them asked for."""
    return _needles("multi-key", wanted, cities=MANY, numbers=1, asked=1)


@task("multi-value", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def values(wanted: Wanted) -> list[Sample]:
    """Three numbers of one city, all asked for."""
    return _needles("multi-value", wanted, cities=1, numbers=3, asked=1)


@task("multi-query", "retrieval", measure, RETRIEVAL, PROTOCOLS)
def queries(wanted: Wanted) -> list[Sample]:
    """Four facts, two of them asked for at once."""
    return _needles("multi-query", wanted, cities=MANY, numbers=1, asked=2)


def _needles(name: str, wanted: Wanted, *, cities: int, numbers: int, asked: int) -> list[Sample]:
    """The first city's first number stands at the sample's depth, the other facts are spread from there."""
    names = even(CITIES, wanted.encode)
    made = []
    for number in range(wanted.samples):
        draw = np.random.default_rng([wanted.seed, cities, numbers, asked, number])
        chosen = [names[place] for place in draw.permutation(len(names))[:cities]]
        owned = {city: [digits(draw) for _ in range(numbers)] for city in chosen}
        facts = [
            f"The {'number' if numbers == 1 else _ordinal(place)} of {city} is {value}."
            for city, values in owned.items()
            for place, value in enumerate(values)
        ]
        depths = spaced(len(facts), depth_of(number))
        answers = [value for city in chosen[:asked] for value in owned[city]]
        hidden = hide(
            wanted,
            prose(wanted, draw),
            list(zip(depths, facts, strict=True)),
            head=HEAD,
            question=_question(chosen[:asked], numbers),
            answer=" and ".join([", ".join(answers[:-1]), answers[-1]] if answers[1:] else answers),
        )
        made.append(hidden.sample(name, number, half_of(number // DEPTHS), depth=depth_of(number)))
    return made


def _question(cities: list[str], numbers: int) -> str:
    if len(cities) > 1:
        both = " and ".join(cities)
        return f"\n\nWhat are the numbers of {both}? The numbers of {both} are"
    if numbers > 1:
        which = "first, second and third number"
        return f"\n\nWhat are the {which} of {cities[0]}? The {which} of {cities[0]} are"
    return f"\n\nWhat is the number of {cities[0]}? The number of {cities[0]} is"


def _ordinal(place: int) -> str:
    return f"{('first', 'second', 'third')[place]} number"
