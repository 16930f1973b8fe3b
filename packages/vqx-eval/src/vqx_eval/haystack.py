"""Facts hidden in a long text at chosen depths, the text cut to an exact number of tokens."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, cycle
from typing import Any, NamedTuple

import numpy as np

from vqx_eval.invented import invented
from vqx_eval.samples import Half, Sample
from vqx_eval.task import Wanted
from vqx_eval.texts import paragraphs

FILLER = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)

DEPTHS = 5


class Hidden(NamedTuple):
    """Token numbers of a context with what was hidden, the question and the answer."""

    context: list[int]
    question: list[int]
    answer: list[int]
    places: list[tuple[int, int]]  # first and last + 1 token of each fact, in their given order

    def sample(self, task: str, number: int, half: Half, **marks: Any) -> Sample:
        """A sample of it; where the facts stand is noted with the other marks."""
        marks = {"length": len(self.context), **marks, "places": self.places}
        return Sample(task, number, half, self.context, self.question, self.answer, marks)


def hide(
    wanted: Wanted,
    hay: Iterable[str],
    facts: Sequence[tuple[float, str]],
    *,
    head: str,
    question: str,
    answer: str,
) -> Hidden:
    """Put facts between the sentences of ``hay``.

    Args:
        wanted: the encoder, and the exact length of the context.
        hay: sentences without end.
        facts: depth from 0 (right after the head) to 1 (right before the question), and the sentence.
        head: what the text begins with.
        question: its last words lead to the answer, without a space at the end.
        answer: without a space at its start.

    Raises:
        ValueError: a length with no room for the facts.
    """
    start = [*wanted.prefix, *wanted.encode(head)]
    needles = [(depth, wanted.encode(f" {sentence}")) for depth, sentence in facts]
    room = wanted.length - len(start) - sum(len(ids) for _, ids in needles)
    if room < 1:
        raise ValueError(
            f"a context of {wanted.length} tokens has no room for {len(facts)} facts and the text around"
            f" them: give --prompt-tokens of at least {wanted.length + 1 - room}"
        )
    sentences = _cut(hay, wanted.encode, room)
    ends = [0, *accumulate(map(len, sentences))]
    before: list[list[int]] = [[] for _ in ends]  # needles before each sentence, and after the last
    for number, (depth, _) in enumerate(needles):
        nearest = min(range(len(ends)), key=lambda place: abs(ends[place] - depth * room))
        before[nearest].append(number)
    context, places = start, dict[int, tuple[int, int]]()
    for here, sentence in zip(before, [*sentences, []], strict=True):
        for number in here:
            ids = needles[number][1]
            places[number] = (len(context), len(context) + len(ids))
            context = context + ids
        context = context + sentence
    found = [places[number] for number in range(len(needles))]
    return Hidden(context, *split_answer(wanted.encode, question, answer), found)


def split_answer(
    encode: Callable[[str], list[int]], question: str, answer: str
) -> tuple[list[int], list[int]]:
    """Token numbers of the question and of the answer that follows it.

    A token that is the space between them alone belongs to the question: it says nothing, and a model that
    is not sure to write it would miss every answer.
    """
    both, alone = encode(f"{question} {answer}"), encode(question)
    shared = 0
    while shared < min(len(both), len(alone)) and both[shared] == alone[shared]:
        shared += 1
    if both[shared : shared + 1] == encode(" ") and shared + 1 < len(both):
        shared += 1
    return both[:shared], both[shared:]


def filler() -> Iterator[str]:
    """The same few sentences again and again."""
    return cycle(FILLER)


def prose(wanted: Wanted, draw: np.random.Generator) -> Iterator[str]:
    """Paragraphs of all the texts in a drawn order, so that domains are mixed; then sentences without end."""
    parts = paragraphs(wanted.texts)
    for number in draw.permutation(len(parts)):
        yield from re.split(r"(?<=[.!?])\s+", parts[number].strip())
    yield from invented(draw)


def depth_of(number: int) -> float:
    """Depths 0, 0.25, 0.5, 0.75 and 1 in turn."""
    return (number % DEPTHS) / (DEPTHS - 1)


def spaced(count: int, first: float) -> list[float]:
    """As many depths, spread over the whole text from ``first`` on, and around."""
    return [(first + number / count) % 1.0001 for number in range(count)]


def digits(draw: np.random.Generator, count: int = 5) -> str:
    """A number that does not begin with 0."""
    return "".join(map(str, [draw.integers(1, 10), *draw.integers(0, 10, count - 1)]))


def even(words: Iterable[str], encode: Callable[[str], list[int]]) -> list[str]:
    """Those words that take the commonest number of tokens, so that samples come out of one shape."""
    lengths = {word: len(encode(f" {word}")) for word in words}
    counts = list(lengths.values())
    return [word for word, length in lengths.items() if length == max(set(counts), key=counts.count)]


def _cut(hay: Iterable[str], encode: Callable[[str], list[int]], room: int) -> list[list[int]]:
    """Sentences of exactly ``room`` tokens together; what is too much goes from the first."""
    sentences: list[list[int]] = []
    total = 0
    for sentence in hay:
        ids = encode(f" {sentence}")
        sentences.append(ids)
        total += len(ids)
        if total >= room:
            break
    while total > room:
        surplus = min(total - room, len(sentences[0]))
        sentences[0] = sentences[0][surplus:]
        total -= surplus
        if not sentences[0]:
            sentences.pop(0)
    return sentences
