"""What is to be measured: every batch of every task, and the candidates that are run on it."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from vqx import Setting
from vqx.settings import label

from vqx_eval.candidates import STREAMING, Candidate, Engine
from vqx_eval.layers import chance, one_layer
from vqx_eval.samples import Batch, Half, Protocol, Sample, batches
from vqx_eval.store import Piece
from vqx_eval.task import Reference, Task, Wanted


class Plan(NamedTuple):
    """Tasks, settings, budgets and lengths: everything with everything."""

    model: str
    tasks: Sequence[Task]
    settings: Sequence[Setting]
    budgets: Sequence[int]
    wanted: Sequence[Wanted]  # one for each length of prompt
    batch: int = 16
    half: Half | None = None
    protocols: Sequence[Protocol] = ("plain", "aware", "agnostic")
    maps: bool = False  # note which tokens the first sample of a task kept
    others: Sequence[Callable[[int, Protocol], Candidate]] = ()  # other engines, at a budget


class Job(NamedTuple):
    """One batch of a task, and everything that is run on it."""

    about: tuple[str, int]  # the model and the length of a chunk
    task: Task
    batch: Batch
    reference: Reference
    maps: bool
    candidates: list[Candidate | Piece]  # a piece where a candidate cannot be had, with the reason


def jobs(plan: Plan, engine: Engine) -> Iterator[Job]:
    """Every batch with its candidates; nothing is read yet."""
    known: dict[tuple[str, int, bool], Candidate | Piece] = {}  # a model tries each once: that takes time
    for task in plan.tasks:
        for protocol in (protocol for protocol in task.protocols if protocol in plan.protocols):
            among = list(_candidates(plan, engine, task, protocol, known))
            for wanted in lengths(plan, task):
                for number, batch in enumerate(batches(samples(plan, task, wanted), protocol, plan.batch)):
                    maps = plan.maps and number == 0 and bool(batch.samples[0].context)
                    reference = Reference(full=engine.full(), batch=batch)
                    yield Job((plan.model, engine.chunk), task, batch, reference, maps, among)


def lengths(plan: Plan, task: Task) -> Sequence[Wanted]:
    """Lengths of prompts matter where there is a prompt; other tasks run once."""
    return plan.wanted if task.group in ("fidelity", "retrieval") else plan.wanted[:1]


def samples(plan: Plan, task: Task, wanted: Wanted) -> list[Sample]:
    """A task's samples, or one half of them."""
    return [sample for sample in task.make(wanted) if plan.half in (None, sample.half)]


def _candidates(
    plan: Plan,
    engine: Engine,
    task: Task,
    protocol: Protocol,
    known: dict[tuple[str, int, bool], Candidate | Piece],
) -> Iterator[Candidate | Piece]:
    """The full cache, then for each budget mlx-lm's rotating cache, streaming and the methods asked for.

    Without a model random eviction stands in for the first two.
    """
    beside = Setting(STREAMING, {})
    asked = [*([] if beside in plan.settings else [beside]), *plan.settings]
    settings = [variant for one in asked for variant in task.variants(one)]
    if task.group == "model-free":
        for budget in plan.budgets:
            yield chance(budget)
            yield from (_or_reason(one, budget, partial(one_layer, one, budget)) for one in settings)
        return
    yield engine.full()
    for budget in plan.budgets:
        yield engine.rotating(budget)
        yield from (other(budget, protocol) for other in plan.others)
        for one in settings:
            where = label(one), budget, protocol == "aware"
            if where not in known:
                known[where] = _or_reason(one, budget, partial(engine.evicting, one, budget, protocol))
            yield known[where]


def _or_reason(setting: Setting, budget: int, make: Callable[[], Candidate]) -> Candidate | Piece:
    try:
        return make()
    except ValueError as error:
        return {"label": label(setting), "budget": budget, "skipped": str(error)}
