"""``vqx eval``: its options, its progress, and what it leaves behind."""

import json
import platform
from collections.abc import Callable
from datetime import date
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import mlx.core as mx
import vqx
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from vqx.host.models import EMBEDDED, load_model

from vqx_eval.candidates import Engine, check, settings
from vqx_eval.report import report
from vqx_eval.run import Plan, jobs, run
from vqx_eval.store import open_store
from vqx_eval.summary import tables
from vqx_eval.task import Task, Wanted
from vqx_eval.tasks import load_tasks
from vqx_eval.texts import load_texts

TASKS = ("continuation", "passkey")
HELP = {
    "model": "A folder or repository that mlx_lm.load takes; 'embedded' is SmolLM2-135M out of a wheel.",
    "methods": "Methods with their options: 'h2o h2o:decay=0.98,recent=32 tova'. Default: all installed.",
    "budgets": "Rows kept per layer, e.g. 128,256,512.",
    "tasks": "Tasks, or 'all'.",
    "texts": "UTF-8 files, or folders of them, that texts are taken from (may be given again).",
    "samples": "Samples per task and length.",
    "prompt-tokens": "Lengths of the contexts, e.g. 512,1024.",
    "answer-tokens": "Tokens that are forced or written after the prompt, where the task leaves it open.",
    "half": "Choose settings on one half of the samples, report them on the other.",
    "out": "Folder for pieces.jsonl (a run started again goes on there), report.md and report.json.",
    "plugin": "Import this module's methods without its being installed (for a checkout).",
}


def _option(name: str, **rest: Any) -> Callable[[Any], Any]:
    return click.option(f"--{name}", show_default=True, help=HELP[name], **rest)


@click.command("eval")
@_option("model", default=EMBEDDED)
@_option("methods", multiple=True)
@_option("budgets", default="256")
@_option("tasks", default=",".join(TASKS))
@_option("texts", multiple=True, type=click.Path(exists=True, path_type=Path))
@_option("samples", default=16)
@_option("prompt-tokens", default="1024")
@_option("answer-tokens", default=128)
@_option("half", default="all", type=click.Choice(["tune", "report", "all"]))
@_option("out", type=click.Path(file_okay=False, path_type=Path))
@_option("plugin", multiple=True)
@click.option("--batch", default=16, show_default=True, help="Samples read at once.")
@click.option("--chunk", default=512, show_default=True, help="Tokens of a prompt read at once.")
@click.option("--seed", default=0, show_default=True, help="Draws what is hidden and where.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(**given: Any) -> None:
    """Measure what evicting methods cost on a model: a table for each task, losses beside wins.

    Beside the methods asked for stand the full cache, streaming-llm and mlx-lm's rotating cache.
    """
    try:
        _command(**given)
    except (ValueError, ModuleNotFoundError, vqx.PluginError) as error:
        raise click.ClickException(str(error)) from error


def _command(*, model: str, out: Path | None, as_json: bool, **given: Any) -> None:
    for module in given["plugin"]:
        vqx.register(import_module(module))
    asked = settings(given["methods"]) if given["methods"] else settings(_bases())
    for setting in asked:
        check(setting)
    known = load_tasks()
    tasks = _tasks(known, given["tasks"])
    texts = load_texts(list(given["texts"]))
    console = Console(stderr=True)
    loaded, tokenizer = load_model(model)
    wanted = [
        Wanted(
            encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            prefix=list(tokenizer.encode("")),
            texts=texts,
            samples=given["samples"],
            length=length,
            answer=given["answer_tokens"],
            seed=given["seed"],
        )
        for length in _numbers("prompt-tokens", given["prompt_tokens"])
    ]
    plan = Plan(
        model=model,
        tasks=tasks,
        settings=asked,
        budgets=_numbers("budgets", given["budgets"]),
        wanted=wanted,
        batch=given["batch"],
        half=None if given["half"] == "all" else given["half"],
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        engine = Engine(loaded, given["chunk"])
        todo = list(jobs(plan, engine))
        bar = progress.add_task("", total=sum(len(job.candidates) for job in todo))
        pieces = run(
            todo,
            open_store(out),
            begin=lambda title, done: progress.update(bar, description=title, completed=done),
        )
    found = tables(pieces, known)
    text = report(found, _about(plan, given, texts))
    if out is not None:
        (out / "report.md").write_text(text, encoding="utf-8")
        (out / "report.json").write_text(json.dumps(pieces, indent=1) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(pieces, indent=1))
    else:
        Console().print(Markdown(text))


def _about(plan: Plan, given: dict[str, Any], texts: dict[str, str]) -> dict[str, object]:
    return {
        "model": plan.model,
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()} {platform.system()}, {mx.default_device()}",
        "versions": ", ".join(f"{name} {_version(name)}" for name in ("vqx", "vqx-eval", "mlx", "mlx-lm")),
        "texts": ", ".join(texts),
        "reading": f"prompts in chunks of {given['chunk']}, answers token by token; with the question in the"
        " prompt, methods cut once, after it, unless their prompt option says otherwise",
        "half": given["half"],
    }


def _bases() -> list[str]:
    """Every method installed that needs no other inside it."""
    return [name for name in vqx.names() if vqx.load(name).wrap is None]


def _tasks(known: dict[str, Task], asked: str) -> list[Task]:
    names = list(known) if asked == "all" else asked.replace(",", " ").split()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no task {unknown[0]!r}; there are: {', '.join(known)}")
    return [known[name] for name in names]


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f"--{name} {text!r}: give whole numbers, e.g. 256,512") from None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "from source"
