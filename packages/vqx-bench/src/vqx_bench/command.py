"""``vqx bench``: its options, its progress, and what it leaves behind."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import vqx
from rich.console import Console
from vqx.cli.asking import drawing, explained, json_flag, plots_flag, plugin_option
from vqx.cli.group import in_words
from vqx.cli.showing import progress
from vqx.cli.showing import report as show
from vqx.host.models import EMBEDDED
from vqx.known import meant
from vqx.settings import check, settings

from vqx_bench.circumstances import circumstances
from vqx_bench.contenders import Contender, evicting, peers, plain, rotating
from vqx_bench.filling import sizes_of
from vqx_bench.measuring import CLOCKS
from vqx_bench.report import report
from vqx_bench.runs import Row, Setting, context, decode, graph, prompt, update_alone
from vqx_bench.shapes import SHAPES, Subject, subject

WHAT = ("decode", "graph", "update", "prompt", "context")
HELP = {
    "model": f"'embedded', what mlx_lm.load takes, or random weights of a shape: {', '.join(SHAPES)}.",
    "part": "Of the model: the whole, or the attention of its layers alone.",
    "what": f"What to time: {','.join(WHAT)}.",
    "methods": "Methods with their options: 'h2o tova:heads=each'. Default: all installed.",
    "cadences": "Tokens between two cuts, 1 (one in, one out) and more: 1,32.",
    "rows": "Rows kept per layer: 512,2048,8192.",
    "sequences": "Sequences decoded together: 1,8,16.",
    "tokens": "Tokens of a prompt (prompt), or of the text before a decode step (context).",
    "steps": "Decode steps of a round: a multiple of the cadences.",
    "rounds": "Rounds that count, after one that warms up.",
    "clock": "wall, or processor: the time that this process's threads took, on a CPU that others use too.",
    "compact": "Time every method with compact positions too.",
    "peers": "Beside them VeloxQuant-MLX's own caches, where it is installed.",
    "patience": "Seconds that one of these may take to read a text before it is left out, and named.",
    "out": "Folder for bench.json, bench.md and pictures.",
}


_option = explained(HELP)
EPILOG = """\b
Examples:
  vqx bench --methods 'h2o streaming-llm' --rows 512,2048
  vqx bench --model llama-3.2-1b --part attention --what decode,update --cadences 1,32
  vqx bench --what prompt --tokens 2048,8192 --out results --plots --json
"""


@click.command("bench", epilog=EPILOG)
@_option("model", default=EMBEDDED)
@_option("part", default="model", type=click.Choice(["model", "attention"]))
@_option("what", default="decode")
@_option("methods", multiple=True)
@_option("cadences", default="1,32")
@_option("rows", default="512")
@_option("sequences", default="1")
@_option("tokens", default="2048")
@_option("steps", default=64)
@_option("rounds", default=5)
@_option("clock", default="wall", type=click.Choice([*CLOCKS]))
@_option("compact", is_flag=True)
@_option("peers", is_flag=True)
@_option("patience", default=60.0)
@_option("out", type=click.Path(file_okay=False, path_type=Path))
@plugin_option
@plots_flag("vqx-bench")
@json_flag
def command(**given: Any) -> None:
    """Time evicting caches against mlx-lm's own, in turns, in one run; medians with their extremes.

    A bounded cache that evicted nothing is an error: what is timed did happen.
    """
    with in_words():
        _command(**given)


def _command(*, out: Path | None, as_json: bool, plots: bool, **given: Any) -> None:
    for module in given["plugin"]:
        vqx.register(import_module(module))
    if plots and out is None:
        raise ValueError("--plots draws into a folder: say which with --out")
    asked = given["what"].split(",")
    if unknown := [one for one in asked if one not in WHAT]:
        raise ValueError(
            f"--what {unknown[0]!r} is not known; choose of {', '.join(WHAT)}{meant(unknown[0], WHAT)}"
        )
    draw = drawing("vqx_bench.plots", "draw", "--plots") if plots else None
    chosen = subject(given["model"], given["part"])
    found: list[Row] = []
    left: list[str] = []
    log = Console(stderr=True)
    with progress("timing") as advance:
        for row in _rows(asked, chosen, given, left):
            found.append(row)
            said = f"{row.what} {row.sequences} x {row.rows:,} {row.contender}"
            advance(1, said)
            if not log.is_terminal:  # where no bar tells it
                log.print(f"{said}: {row.measured.median:.2f} ms, {row.measured.ratio:.2f}x", highlight=False)
    part = {"model": chosen.name, "rounds": f"{given['rounds']} of {given['steps']} steps"}
    part["clock"] = given["clock"]
    if left:
        part["left out"] = "; ".join(dict.fromkeys(left))
    facts = {**part, **circumstances()}
    text = report(found, facts)
    told = json.dumps({**facts, "rows": [row.told() for row in found]}, indent=1)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "bench.json").write_text(told + "\n", encoding="utf-8")
        if draw is not None:
            text += "\n".join(f"![{file.stem}]({file.name})\n" for file in draw(found, out))
        (out / "bench.md").write_text(text, encoding="utf-8")
    if as_json:
        click.echo(told)
    else:
        show(text)


def _rows(asked: list[str], chosen: Subject, given: dict[str, Any], left: list[str]) -> Iterator[Row]:
    cadences, lengths = _numbers("cadences", given["cadences"]), _numbers("tokens", given["tokens"])
    if wrong := [number for number in cadences if given["steps"] % number]:
        raise ValueError(f"--steps {given['steps']} is no multiple of the cadence {wrong[0]}")
    methods = settings(given["methods"]) if given["methods"] else settings(vqx.names())
    for setting in methods:
        check(setting)
    model, sizes = chosen.model, sizes_of(chosen.model)
    positions = ["absolute", "compact"] if given["compact"] else ["absolute"]
    asked_of = [setting.method for setting in methods]

    def ours(rows: int) -> Iterator[Contender]:
        for setting in methods:
            for where in positions:
                for interval in cadences:
                    compact = {} if where == "absolute" else {"positions": where}
                    yield evicting(model, setting, rows, {"interval": interval, **compact})

    for batch in _numbers("sequences", given["sequences"]):
        how = Setting(given["steps"], given["rounds"], batch, given["clock"], left.append)
        for rows in _numbers("rows", given["rows"]):
            others = peers(model, asked_of, rows, given["patience"], left.append) if given["peers"] else []
            bounded = [*ours(rows), *others]
            every = [plain(model), rotating(model, rows), *bounded]
            if "decode" in asked:
                yield from decode(chosen, sizes, every, rows, how)
            if "graph" in asked:
                yield from graph(chosen, sizes, every, rows, how)
            if "update" in asked:
                yield from update_alone(sizes, every, rows, how)
            for tokens in lengths:
                if "prompt" in asked:
                    yield from prompt(chosen, [plain(model), *bounded], rows, tokens, how)
                if "context" in asked:
                    yield from context(chosen, sizes, [plain(model), *bounded], rows, tokens, how)


def _numbers(name: str, text: str) -> list[int]:
    try:
        found = [int(number) for number in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ValueError(f"--{name} {text!r}: give whole numbers from 1 on, as in 512,2048")
    return found
