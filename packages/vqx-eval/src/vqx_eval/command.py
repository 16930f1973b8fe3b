"""``vqx eval``: its options, its progress, and what it leaves behind."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import vqx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from vqx.cli.asking import drawing, explained, json_flag, plots_flag, plugin_option
from vqx.cli.group import in_words
from vqx.cli.showing import report as show
from vqx.host.models import EMBEDDED
from vqx.settings import check, settings

from vqx_eval.plan import jobs
from vqx_eval.report import report
from vqx_eval.run import run
from vqx_eval.samples import to_json
from vqx_eval.setup import bases, circumstances, prepare, tasks_named
from vqx_eval.store import open_store
from vqx_eval.summary import tables
from vqx_eval.task import TASKS

DEFAULT = "continuation,passkey"
HELP = {
    "model": "A folder or repository that mlx_lm.load takes; 'embedded' is SmolLM2-135M out of a wheel.",
    "methods": "Methods with their options: 'h2o h2o:decay=0.98,recent=32 tova'. Default: all installed.",
    "budgets": "Rows kept per layer: 128,256,512.",
    "tasks": "Tasks, their groups (fidelity, retrieval, generation, model-free) or 'all'; see --list.",
    "texts": "UTF-8 files, or folders of them, that texts are taken from (may be given again).",
    "samples": "Samples per task and length.",
    "prompt-tokens": "Lengths of the contexts: 512,1024.",
    "answer-tokens": "Tokens of a text that are forced after its prompt.",
    "write-tokens": "Tokens that the model writes by itself (long-generation).",
    "stream-tokens": "Tokens of a stream. Default: half more than the model was trained for, at most 16,384.",
    "half": "Choose settings on one half of the samples, report them on the other.",
    "out": "Folder for pieces, samples, report and pictures; a run started again goes on there.",
    "batch": "Samples read at once.",
    "chunk": "Tokens of a prompt read at once.",
    "seed": "Draws what is hidden and where.",
}


_option = explained(HELP)
EPILOG = """\b
Examples:
  vqx eval --methods 'h2o tova h2o:decay=0.98' --budgets 128,256
  vqx eval --tasks retrieval --texts notes/ --out results --plots
  vqx eval --list
"""


@click.command("eval", epilog=EPILOG)
@_option("model", default=EMBEDDED)
@_option("methods", multiple=True)
@_option("budgets", default="256")
@_option("tasks", default=DEFAULT)
@_option("texts", multiple=True, type=click.Path(exists=True, path_type=Path))
@_option("samples", default=16)
@_option("prompt-tokens", default="1024")
@_option("answer-tokens", default=128)
@_option("write-tokens", default=512)
@_option("stream-tokens", type=int)
@_option("half", default="all", type=click.Choice(["tune", "report", "all"]))
@_option("out", type=click.Path(file_okay=False, path_type=Path))
@plugin_option
@_option("batch", default=16)
@_option("chunk", default=512)
@_option("seed", default=0)
@plots_flag("vqx-eval")
@json_flag
@click.option("--list", "listed", is_flag=True, help="List the tasks and stop.")
def command(**given: Any) -> None:
    """Measure what evicting methods cost on a model: a table for each task, losses beside wins.

    Beside the methods asked for stand the full cache, streaming-llm and mlx-lm's rotating cache.
    """
    with in_words():
        if given["listed"]:
            for task in tasks_named("all"):
                click.echo(f"{task.group:12}{task.name:18}{task.summary}")
            return
        _command(**given)


def _command(*, out: Path | None, as_json: bool, plots: bool, **given: Any) -> None:
    for module in given["plugin"]:
        vqx.register(import_module(module))
    asked = settings(given["methods"]) if given["methods"] else bases()
    for setting in asked:
        check(setting)
    if plots and out is None:
        raise ValueError("--plots draws into a folder: say which with --out")
    draw = drawing("vqx_eval.plots", "draw", "--plots") if plots else None
    plan, engine = prepare(asked, maps=plots, **given)
    tokens = TextColumn("{task.fields[tokens]:,} tokens")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        tokens,
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("samples and caches", total=None, tokens=0)

        def advance(read: int) -> None:
            progress.update(bar, tokens=progress.tasks[bar].fields["tokens"] + read)

        todo = list(jobs(plan, engine._replace(advance=advance)))
        progress.update(bar, total=sum(len(job.candidates) for job in todo))

        def begin(title: str, done: int) -> None:
            progress.update(bar, description=title, completed=done)

        pieces = run(todo, open_store(out), begin=begin)
    found = tables(pieces, TASKS)
    text = report(found, circumstances(plan, given))
    if out is not None:
        read = {(s.task, len(s.context), s.number): s for job in todo for s in job.batch.samples}
        (out / "samples.jsonl").write_text(to_json([*read.values()]), encoding="utf-8")
        (out / "report.json").write_text(json.dumps(pieces, indent=1) + "\n", encoding="utf-8")
        if draw is not None:
            pictures = draw(found, pieces, out)
            text += "\n".join(["## Pictures", "", *(f"![{file.stem}]({file.name})\n" for file in pictures)])
        (out / "report.md").write_text(text, encoding="utf-8")
    if as_json:
        click.echo(json.dumps(pieces, indent=1))
    else:
        show(text)
