"""One run: every task, protocol, batch and candidate that is not there yet, the full cache shared."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
from vqx import Setting

from vqx_eval.candidates import STREAMING, Candidate, Engine, label
from vqx_eval.kept import kept_map, kept_rows
from vqx_eval.layers import chance, one_layer
from vqx_eval.samples import Batch, Half, Protocol, batches, digest
from vqx_eval.store import Piece, Store
from vqx_eval.task import Reference, Task, Wanted


class Plan(NamedTuple):
    """What is to be measured."""

    model: str
    tasks: Sequence[Task]
    settings: Sequence[Setting]
    budgets: Sequence[int]
    wanted: Sequence[Wanted]  # one for each length of prompt
    batch: int = 16
    half: Half | None = None
    protocols: Sequence[Protocol] = ("plain", "aware", "agnostic")
    maps: bool = False  # note which tokens the first sample of a task kept


class Job(NamedTuple):
    """One batch of a task, and everything that is run on it."""

    about: tuple[str, int]  # the model and the length of a chunk
    task: Task
    batch: Batch
    full: Candidate
    maps: bool
    candidates: list[Candidate | Piece]  # a piece where a candidate cannot be had, with the reason


def jobs(plan: Plan, engine: Engine) -> Iterator[Job]:
    """Every batch with its candidates; nothing is read yet."""
    for task in plan.tasks:
        lengths = plan.wanted if task.group in ("fidelity", "retrieval") else plan.wanted[:1]
        for protocol in (protocol for protocol in task.protocols if protocol in plan.protocols):
            among = list(candidates(plan, engine, task, protocol))
            for wanted in lengths:
                samples = [s for s in task.make(wanted) if plan.half in (None, s.half)]
                for number, batch in enumerate(batches(samples, protocol, plan.batch)):
                    maps = plan.maps and number == 0 and bool(batch.samples[0].context)
                    yield Job((plan.model, engine.chunk), task, batch, engine.full(), maps, among)


def candidates(plan: Plan, engine: Engine, task: Task, protocol: Protocol) -> Iterator[Candidate | Piece]:
    """The full cache, then for each budget mlx-lm's rotating cache, streaming and the methods asked for.

    Without a model random eviction stands in for the first two.
    """
    alone = task.group == "model-free"
    beside = Setting(STREAMING, {})
    asked = [*([] if beside in plan.settings else [beside]), *plan.settings]
    if not alone:
        yield engine.full()
    for budget in plan.budgets:
        yield chance(budget) if alone else engine.rotating(budget)
        for setting in (variant for one in asked for variant in task.variants(one)):
            try:
                yield one_layer(setting, budget) if alone else engine.evicting(setting, budget, protocol)
            except ValueError as error:
                yield {"label": label(setting), "budget": budget, "skipped": str(error)}


def run(todo: Iterable[Job], store: Store, *, begin: Callable[[str, int], None]) -> list[Piece]:
    """Measure what the store does not hold.

    Args:
        begin: told before each piece what it is and how many pieces are done.

    Returns:
        The pieces of all jobs, those of earlier runs among them, in their order.
    """
    found: list[Piece] = []
    for job in todo:
        reference = Reference(full=job.full, batch=job.batch)
        for candidate in job.candidates:
            if isinstance(candidate, dict):
                found.append({**_about(job), **candidate, "samples": []})
                continue
            about = {**_about(job), "label": candidate.label, "budget": candidate.budget}
            key = _key(job, candidate)
            if key not in store.pieces:
                begin(_title(about), len(found))
                store.add({"key": key, **about, **_measured(job, candidate, reference)})
            found.append(store.pieces[key])
    return found


def _measured(job: Job, candidate: Candidate, reference: Reference) -> dict[str, Any]:
    begun: list[Any] = []

    def start() -> Any:
        begun.append(candidate.start())
        return begun[-1]

    before = time.perf_counter()
    figures = job.task.measure(candidate._replace(start=start), job.batch, reference)
    mx.clear_cache()
    return {
        "options": dict(candidate.options),
        "seconds": round(time.perf_counter() - before, 3),
        **kept_rows(begun[-1]),
        **({"map": kept_map(begun[-1])} if job.maps else {}),
        "samples": [
            {"number": sample.number, "half": sample.half, **sample.marks, **values}
            for sample, values in zip(job.batch.samples, figures, strict=True)
        ],
    }


def _about(job: Job) -> Piece:
    length = job.batch.samples[0].marks["length"]
    return {"task": job.task.name, "protocol": job.batch.protocol, "length": length}


def _title(about: Piece) -> str:
    budget = f" at {about['budget']}" if about["budget"] else ""
    return f"{about['task']}, {about['label']}{budget}"


def _key(job: Job, candidate: Candidate) -> str:
    """Everything that the figures depend on; another setting is another key."""
    return digest(
        [job.about, job.task.name, job.batch, job.maps, candidate.label, candidate.budget, candidate.options]
    )
