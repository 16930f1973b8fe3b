"""One run: every task, protocol, batch and candidate that is not there yet, the full cache shared."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx

from vqx_eval.candidates import Candidate
from vqx_eval.kept import kept_map, kept_rows
from vqx_eval.plan import Job
from vqx_eval.samples import digest
from vqx_eval.store import Piece, Store


def run(todo: Iterable[Job], store: Store, *, begin: Callable[[str, int], None]) -> list[Piece]:
    """Measure what the store does not hold.

    Args:
        begin: told before each piece what it is and how many pieces are done.

    Returns:
        The pieces of all jobs, those of earlier runs among them, in their order.
    """
    found: list[Piece] = []
    for job in todo:
        for candidate in job.candidates:
            if isinstance(candidate, dict):
                found.append({**_about(job), **candidate, "samples": []})
                continue
            about = {**_about(job), "label": candidate.label, "budget": candidate.budget}
            key = _key(job, candidate)
            if not _there(job, store.pieces.get(key)):
                begin(_title(about), len(found))
                try:
                    store.add({"key": key, **about, **_measured(job, candidate)})
                except ValueError as error:
                    if candidate.budget is None:
                        raise
                    # one method that cannot does not stop the others; it is tried again in the next run
                    found.append({**about, "skipped": str(error), "samples": []})
                    continue
            found.append(store.pieces[key])
    return found


def _there(job: Job, piece: Piece | None) -> bool:
    """Whether a piece of an earlier run will do: a picture may want a map that nobody wanted then."""
    return piece is not None and not (job.maps and "evicted" in piece and "map" not in piece)


def _measured(job: Job, candidate: Candidate) -> dict[str, Any]:
    begun: list[Any] = []

    def start() -> Any:
        begun.append(candidate.start())
        return begun[-1]

    before = time.perf_counter()
    figures = job.task.measure(candidate._replace(start=start), job.batch, job.reference)
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
    return digest([job.about, job.task.name, job.batch, candidate.label, candidate.budget, candidate.options])
