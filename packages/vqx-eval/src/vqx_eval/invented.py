"""Sentences without end, for when the texts run out: plain, of mixed subjects, hardly ever twice the same."""

from collections.abc import Iterator

import numpy as np

from vqx_eval.words import CITIES, PEOPLE, THINGS

FORMS = (
    "In {year} {who} left {city} with a {what}, and nobody there expected to see the {other} again.",
    "The road from {city} to {town} passes an old {what} which {who} once painted.",
    "{who} said that the {what} was worth {number} pounds, but {friend} would not pay more than half of it.",
    "Every {what} in the shop came from {city}, where a family of {number} people still makes them by hand.",
    "When the {what} broke, {friend} looked for another one in {town}, and found a {other} instead.",
    "It rained for {number} days, so the {what} stayed in its box and {who} wrote letters to {friend}.",
    "The museum of {city} keeps a {what} from {year} beside a {other} that nobody can date.",
    "Take the {what} out of the {other}, wait for {number} minutes, and put it back with the lid on.",
    "{friend} learned in {town} how to mend a {what}, which is harder than it looks.",
    "Of the {number} visitors that came in {year}, most asked for the {what} and a few for {who}.",
    "A letter from {who} speaks of a {what} at the gate of {city}, but says nothing of its size.",
    "If the {what} is wet, the {other} slips; that is why {friend} always carries a cloth.",
    "The council of {town} voted {number} to nine against the {what} that {who} had offered.",
    "{who} and {friend} met again in {city} in {year}, each of them with a {other} under one arm.",
    "Nobody in {town} remembers the {what}, although a picture of it hangs in the school.",
    "The first {what} was sold in {year} to a doctor in {city}; the {other} came much later.",
)


def invented(draw: np.random.Generator) -> Iterator[str]:
    """Sentences about people, places and things."""

    def one(words: tuple[str, ...]) -> str:
        return words[draw.integers(len(words))]

    while True:
        yield one(FORMS).format(
            who=one(PEOPLE),
            friend=one(PEOPLE),
            city=one(CITIES),
            town=one(CITIES),
            what=one(THINGS),
            other=one(THINGS),
            number=draw.integers(10, 1000),
            year=draw.integers(1700, 2020),
        )
