"""What a task is: how its samples are made, how they are measured, and which figures come of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from vqx import Setting

from vqx_eval.candidates import Candidate
from vqx_eval.forced import Forced, forced
from vqx_eval.samples import Batch, Protocol, Sample

Figures: TypeAlias = dict[str, Any]
"""Of one sample: numbers, or lists of numbers along the sequence."""


class Figure(NamedTuple):
    """A number that a task reports, and which way is good."""

    name: str
    better: Literal["lower", "higher"]
    unit: str
    percent: bool = False


class Wanted(NamedTuple):
    """What samples are made from."""

    encode: Callable[[str], list[int]]  # without special tokens
    prefix: Sequence[int]  # the special tokens that a text begins with
    texts: Mapping[str, str]
    samples: int
    length: int  # of a context, in tokens
    answer: int = 128  # tokens that are forced or written where the task leaves it open
    written: int = 512  # tokens that the model writes by itself
    stream: int = 4096  # tokens of a stream
    trained: int | None = None  # the greatest length the model was trained for
    never: Sequence[int] = ()  # tokens that end a text, which a text that must go on never takes
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The full cache on one batch: its logits are computed when first asked for, then kept."""

    full: Candidate
    batch: Batch
    _kept: list[Forced] = field(default_factory=list)

    def forced(self) -> Forced:
        """The true answer under the full cache, its logits kept."""
        if not self._kept:
            self._kept.append(forced(self.full.start(), self.batch, keep=True))
        return self._kept[0]


Make: TypeAlias = Callable[[Wanted], list[Sample]]
Variants: TypeAlias = Callable[[Setting], list[Setting]]
Group: TypeAlias = Literal["fidelity", "retrieval", "generation", "model-free"]
Measure: TypeAlias = Callable[[Candidate, Batch, Reference], list[Figures]]


class Task(NamedTuple):
    """Samples, how a candidate does on a batch of them, and the figures; the first figure decides."""

    name: str
    group: Group
    summary: str
    make: Make
    measure: Measure
    figures: tuple[Figure, ...]
    protocols: tuple[Protocol, ...]
    variants: Variants  # the settings that one asked for is run with


TASKS: dict[str, Task] = {}


def as_given(setting: Setting) -> list[Setting]:
    """A method runs once, with the settings asked for."""
    return [setting]


def task(
    name: str,
    group: Group,
    measure: Measure,
    figures: tuple[Figure, ...],
    protocols: tuple[Protocol, ...] = ("plain",),
    variants: Variants = as_given,
) -> Callable[[Make], Make]:
    """Declare a task; the function makes its samples, the first line of its docstring is the summary."""

    def declare(make: Make) -> Make:
        summary = (make.__doc__ or "").strip().split("\n")[0]
        TASKS[name] = Task(name, group, summary, make, measure, figures, protocols, variants)
        return make

    return declare
