"""Evaluation for vqx: what every eviction method costs on your model and your text."""

from vqx.settings import settings

from vqx_eval.candidates import Candidate, Engine
from vqx_eval.plan import Job, Plan, jobs
from vqx_eval.reading import CacheReading, Reading
from vqx_eval.report import report
from vqx_eval.run import run
from vqx_eval.samples import Batch, Sample, from_json, to_json
from vqx_eval.setup import tasks_named, wanted
from vqx_eval.store import Store, open_store
from vqx_eval.summary import tables
from vqx_eval.task import Figure, Reference, Task, Wanted, task

__all__ = [
    "Batch",
    "CacheReading",
    "Candidate",
    "Engine",
    "Figure",
    "Job",
    "Plan",
    "Reading",
    "Reference",
    "Sample",
    "Store",
    "Task",
    "Wanted",
    "from_json",
    "jobs",
    "open_store",
    "report",
    "run",
    "settings",
    "tables",
    "task",
    "tasks_named",
    "to_json",
    "wanted",
]
