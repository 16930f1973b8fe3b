"""Samples as plain token numbers, so that any engine can be put to the same questions; and their batches.

A sample is a context, perhaps a question about it, and the answer that is fed token by token.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

Half: TypeAlias = Literal["tune", "report"]
Protocol: TypeAlias = Literal["plain", "aware", "agnostic"]
"""``plain``: there is no question; ``aware``: it is part of the prompt; ``agnostic``: it comes after it."""


class Sample(NamedTuple):
    """One text with its answer, in token numbers."""

    task: str
    number: int
    half: Half
    context: list[int]
    question: list[int]  # empty where the answer simply goes on
    answer: list[int]
    marks: dict[str, Any] = {}  # noqa: RUF012 - never written to; depth, hops, text

    @property
    def shape(self) -> tuple[int, int, int]:
        """Lengths of context, question and answer; samples of one shape fit in a batch."""
        return len(self.context), len(self.question), len(self.answer)


class Batch(NamedTuple):
    """Samples of one shape, and when their question is asked."""

    samples: list[Sample]
    protocol: Protocol

    @property
    def prompts(self) -> list[list[list[int]]]:
        """What is read before the answer: one or two blocks of ``[B, S]`` token numbers."""
        if self.protocol == "agnostic":
            return [[s.context for s in self.samples], [s.question for s in self.samples]]
        return [[s.context + s.question for s in self.samples]]

    @property
    def answers(self) -> list[list[int]]:
        """Token numbers ``[B, T]``."""
        return [sample.answer for sample in self.samples]

    @property
    def tokens(self) -> int:
        """Steps along the sequence, whatever the number of samples."""
        return sum(self.samples[0].shape)


def half_of(number: int) -> Half:
    """Even groups are for choosing, odd ones for reporting what was chosen."""
    return "report" if number % 2 else "tune"


def batches(samples: Iterable[Sample], protocol: Protocol, size: int) -> list[Batch]:
    """Samples of one shape together, at most ``size`` in a batch, in their own order."""
    alike: dict[tuple[int, int, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        alike[sample.shape].append(sample)
    return [
        Batch(group[first : first + size], protocol)
        for group in alike.values()
        for first in range(0, len(group), size)
    ]


def to_json(samples: Sequence[Sample]) -> str:
    """One sample a line."""
    return "".join(json.dumps(sample._asdict()) + "\n" for sample in samples)


def from_json(lines: str) -> list[Sample]:
    """What :func:`to_json` wrote."""
    return [Sample(**json.loads(line)) for line in lines.splitlines() if line.strip()]


def digest(value: object) -> str:
    """A short name for plain data; equal data, equal name."""
    plain = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]
