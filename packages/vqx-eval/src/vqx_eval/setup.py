"""From the command's options to a plan: the model and its tokenizer, the texts, the tasks by name."""

import platform
from collections.abc import Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import vqx
from vqx import Setting
from vqx.host.models import load_model
from vqx.known import meant
from vqx.settings import settings

from vqx_eval.candidates import Engine
from vqx_eval.plan import Plan
from vqx_eval.task import Task, Wanted
from vqx_eval.tasks import load_tasks
from vqx_eval.texts import load_texts

LONGEST = 16384
"""Tokens of a stream, unless more are asked for."""
OURS = ("vqx", "vqx-eval", "mlx", "mlx-lm")


def prepare(asked: list[Setting], *, maps: bool, **given: Any) -> tuple[Plan, Engine]:
    """Load what is wanted; a model only if a task needs one.

    Raises:
        ValueError: an option that is not understood.
    """
    tasks = tasks_named(given["tasks"])
    lengths = numbers("prompt-tokens", given["prompt_tokens"])
    budgets = numbers("budgets", given["budgets"])
    texts = load_texts(list(given["texts"]))
    model, tokenizer = nn.Module(), None
    if any(task.group != "model-free" for task in tasks):
        model, tokenizer = load_model(given["model"])
    trained = getattr(getattr(model, "args", None), "max_position_embeddings", None)
    rest = {
        "texts": texts,
        "samples": given["samples"],
        "answer": given["answer_tokens"],
        "written": given["write_tokens"],
        "stream": given["stream_tokens"] or min(LONGEST, 3 * (trained or LONGEST) // 2),
        "trained": trained,
        "seed": given["seed"],
    }
    plan = Plan(
        model=given["model"],
        tasks=tasks,
        settings=asked,
        budgets=budgets,
        wanted=[wanted(tokenizer, length=length, **rest) for length in lengths],
        batch=given["batch"],
        half=None if given["half"] == "all" else given["half"],
        maps=maps,
    )
    return plan, Engine(model, given["chunk"])


def wanted(tokenizer: Any, **rest: Any) -> Wanted:
    """What samples are made from, with a tokenizer of mlx-lm (None where no text is read)."""
    if tokenizer is None:
        return Wanted(encode=lambda text: [], prefix=[], **rest)
    return Wanted(
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        prefix=list(tokenizer.encode("")),
        never=sorted(getattr(tokenizer, "eos_token_ids", [])),
        **rest,
    )


def tasks_named(text: str) -> list[Task]:
    """Tasks by their names, their groups' names, or ``all``.

    Raises:
        ValueError: a name that is neither.
    """
    known = load_tasks()
    found: dict[str, Task] = {}
    for name in text.replace(",", " ").split():
        here = [task for task in known.values() if name in (task.name, task.group, "all")]
        if not here:
            groups = [*sorted({task.group for task in known.values()}), "all"]
            raise ValueError(
                f"no task {name!r}; there are {', '.join(known)}, or {', '.join(groups)}"
                + meant(name, [*known, *groups])
            )
        found |= {task.name: task for task in here}
    return list(found.values())


def bases() -> list[Setting]:
    """Every method installed that needs no other inside it, with its own defaults."""
    return settings([name for name in vqx.names() if vqx.load(name).wrap is None])


def numbers(name: str, text: str) -> list[int]:
    """Whole numbers between commas."""
    try:
        found = [int(number) for number in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ValueError(f"--{name} {text!r}: give whole numbers from 1 on, as in 256,512")
    return found


def circumstances(plan: Plan, given: Mapping[str, Any]) -> dict[str, object]:
    """What a report must say beside its figures."""
    texts: list[Path | str] = list(given["texts"]) or list(plan.wanted[0].texts)
    half = {"all": "all samples"}.get(given["half"], f"the half of the samples for {given['half']}")
    return {
        "model": plan.model,
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()} {platform.system()}, {mx.default_device()}",
        "versions": ", ".join(f"{name} {_version(name)}" for name in OURS),
        "texts": f"{', '.join(map(str, texts))}; {half}, seed {given['seed']}",
        "reading": f"prompts in chunks of {given['chunk']}, answers token by token; with the question in the"
        " prompt, methods cut once, after it, unless their prompt option says otherwise",
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "from source"
