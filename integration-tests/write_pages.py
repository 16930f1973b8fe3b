"""Write the parts of docs pages that code says better: options, costs, figures, departures, commands.

    python integration-tests/write_pages.py

Between ``<!-- NAME begins -->`` and ``<!-- NAME ends -->`` all is written anew; the rest is for people.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from draw_methods import BUDGET, FOLDER, SETTINGS, TOKENS
from vqx import LayerInfo, Options
from vqx.cli import main as vqx_command
from vqx.registry import registry
from vqx.scorers import Arrivals
from vqx.settings import label
from vqx.spec import MethodSpec
from vqx.testing.streams import stream

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COSTS = {
    "budget": "memory, and the time of attention, grow with it",
    "n_sink": "so many rows of the budget that no score chooses",
    "recent": "so many rows of the budget that no score chooses",
    "grace": "so many rows of the budget that no score chooses",
    "window": "so many queries are held; their attention is repeated at each cut; their rows are fixed",
    "interval": "up to that many rows less one above the budget; fewer cuts, so less time",
    "undo": "a few rows for each of these tokens, and the statistics before it",
    "bits": "rows are rounded; each step widens those of a layer before attention reads them",
    "group_size": "smaller groups round less and hold more scales",
    "spans": "their rows are taken off what a score may choose",
    "profile": "measured once: as many readings of the texts as the model has layers",
    "filters": "made once: one reading of a text",
    "beyond": "`expected` holds a covariance per query head and reads values at each cut",
    "value_norm": "a cut reads the values too",
    "merge_budget": "values of kept rows change",
    "heads": "nothing: one ranking or several",
    "skip": "those layers grow with the text",
    "prompt": "`whole` holds the whole prompt until it was read",
    "cadence": "`token` decides prompts token by token: slower",
    "positions": "`compact` turns every kept key at each step",
    "queries": "stand-ins cost quality; the model's own cost a look at each attention",
    "lag": "up to twice as many newest rows are fixed",
}
"""What an option costs, where it costs anything; others change which rows stay and nothing else."""
READS = {  # what building one without a model cannot show
    "kvzip": "a second pass over the context",
    "qfilters": "no query, once filters were made",
    "layerwise": "what the method inside reads",
    "squeezeattention": "what the method inside reads, and the prompt's hidden states",
    "critical": "what the method inside reads, and values behind the output projection",
}
TASKS = {
    ("continuation", "plain"): ("loss", "loss above the full cache's, nats a token", "text that goes on"),
    ("passkey", "aware"): ("match", "pass keys found, %", "pass keys, question in the prompt"),
    ("passkey", "agnostic"): ("match", "pass keys found, %", "pass keys, asked afterwards"),
    ("needle-prose", "aware"): ("match", "facts found, %", "facts in prose, question in the prompt"),
    ("needle-prose", "agnostic"): ("match", "facts found, %", "facts in prose, asked afterwards"),
}


def pages() -> dict[Path, str]:
    """Every page that has such parts, as it should be."""
    found = {DOCS / "methods.md": {"methods": overview, "equal": equal}}
    found |= {DOCS / "choose.md": {"engine": engine}}
    found |= {DOCS / "command-line.md": {"commands": commands}}
    for file in sorted((DOCS / "methods").glob("*.md")):
        found[file] = _of_method(file.stem)
    return {file: _filled(file.read_text(encoding="utf-8"), parts) for file, parts in found.items()}


def overview() -> str:
    """A line for each method, with its page."""
    rows = []
    for file in sorted((DOCS / "methods").glob("*.md")):
        for spec in _specs(file.stem):
            page = f"[{spec.name}](methods/{file.name})"
            rows.append((page, spec.summary, _paper(spec.paper), _reads(spec)))
    return _table(("method", "keeps", "paper", "reads"), rows)


def equal() -> str:
    """The settings at which two methods are one, as plugins declare them."""

    rows = [
        (
            f"`{label(one.this)}`",
            f"`{label(one.that)}`",
            ", ".join(f"`{name}={value}`" for name, value in one.engine.items()),
            one.reason,
        )
        for one in registry.collapses()
    ]
    return _table(("", "is", "with", "since"), sorted(rows))


def engine() -> str:
    """The options that every method takes."""
    return _options(Options)


def commands() -> str:
    """The help of every command, as it is printed."""
    context = click.Context(vqx_command, info_name="vqx", **vqx_command.context_settings)
    names = vqx_command.list_commands(context)
    return "\n\n".join(f"## {name}\n\n```text\n{_help(name, context)}\n```" for name in names)


def _help(name: str, parent: click.Context) -> str:
    command = vqx_command.get_command(parent, name)
    if command is None:
        raise ValueError(f"vqx {name}: no such command")
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
    ours, passed, _ = command.get_help(context).partition("\nOptions of mlx_lm.")
    return ours.strip() + ("\n\nAnd all options of mlx-lm's own command." if passed else "")


def _of_method(name: str) -> dict[str, Callable[[], str]]:
    package = next(each for each in registry.installed() if each.name == name).distribution
    return {
        "facts": lambda: _facts(name, package),
        "picture": lambda: _picture(name),
        "options": lambda: "\n\n".join(
            (f"`{spec.name}`:\n\n" if len(_specs(name)) > 1 else "") + _options(spec.config, spec.windows)
            for spec in _distinct(_specs(name))
        ),
        "evidence": lambda: _evidence(name),
        "departures": lambda: _departures(package),
    }


def _specs(name: str) -> list[MethodSpec]:
    """The method of a page, and those that its package brings beside it."""
    package = next(each for each in registry.installed() if each.name == name).distribution
    here = [each.name for each in registry.installed() if each.distribution == package]
    return [registry.load(each) for each in sorted(here, key=lambda each: (each != name, each))]


def _distinct(specs: Iterable[MethodSpec]) -> list[MethodSpec]:
    """One for each form of options."""
    return [*{spec.config: spec for spec in reversed([*specs])}.values()][::-1]


def _facts(name: str, package: str) -> str:
    spec, *others = _specs(name)
    around = spec.wrap is not None or spec.share is not None
    lines = [
        f"{spec.summary[0].upper()}{spec.summary[1:]}.",
        f"{_paper(spec.paper)} · `pip install {package}`"
        + (f" · goes around another method: `{name}(h2o)`" if around else "")
        + "".join(f" · also `{other.name}`: {other.summary}" for other in others),
        f"Cost: {_cost(spec)}.",
    ]
    return "\n\n".join(lines)


def _cost(spec: MethodSpec) -> str:
    """What a built method reads and holds."""
    beside = _columns(spec)
    if not beside:
        return f"reads {_reads(spec)}; nothing is held beside a row"
    held = "a number" if beside == 1 else f"{beside} numbers"
    return f"reads {_reads(spec)}; {held} beside each row of each head"


def _built(spec: MethodSpec, **options: Any) -> Any:
    config = spec.config(budget=4096, **options)
    return spec.build(config, [LayerInfo(number, "model") for number in range(4)])[-1]


def _reads(spec: MethodSpec) -> str:
    if spec.name in READS:
        return READS[spec.name]
    if spec.wrap is not None or spec.share is not None:
        return f"what the method inside reads; alone: {_read_by(_built(spec).scorer)}"
    return _read_by(_built(spec).scorer)


def _read_by(scorer: Any) -> str:
    if scorer.note is not None:
        return "every query, summed up" + (", and its attention" if scorer.observe is not None else "")
    if scorer.observe is not None:
        return "every query's attention"
    if scorer.window:
        latest = "the latest query" if scorer.window == 1 else f"the latest {scorer.window} queries"
        return f"{latest}, at each cut"
    return "no query"


def _columns(spec: MethodSpec) -> int:
    if spec.name in READS:
        return 1 if spec.name in ("kvzip", "qfilters", "critical") else 0
    some = stream("gaussian")
    return len(_built(spec).scorer.init(Arrivals(some.keys[:, :, :2], some.values[:, :, :2], 0)))


def _picture(name: str) -> str:
    if not (FOLDER / f"{name}.png").is_file():
        raise ValueError(f"no picture of {name}: python integration-tests/draw_methods.py {name}")
    setting = SETTINGS.get(name, name)
    how = f"`vqx inspect --method '{setting}:prompt=whole' --budget {BUDGET} --tokens {TOKENS} --png FILE`"
    if name in ("protect", "kvzip"):
        how = f"`{setting}` at {BUDGET} rows; " + (
            "the sentence with the code is a span" if name == "protect" else "the context was repeated once"
        )
    return (
        f"![the tokens that {name} keeps](../results/kept/{name}.png)\n\n"
        f"{how} (drawn by `integration-tests/draw_methods.py`): the darker a token, the more of all heads"
        " hold it; below, every head (layers from the top) beside every token. One text and a small model:"
        " a picture, not a measurement."
    )


def _options(config: type[Any], windows: Sequence[str] = ()) -> str:
    said = _docstrings(config)
    rows = []
    for field in fields(config):
        values = _values(field)
        values += "; below 128 rows a sixteenth of the budget" if field.name in windows else ""
        cost = COSTS.get(field.name, "")
        rows.append((f"`{field.name}`", values, said.get(field.name, ""), cost))
    return _table(("option", "default", "meaning", "costs"), rows)


def _docstrings(config: type[Any]) -> dict[str, str]:
    """The words below each field."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(config)))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    found = {"budget": "Rows that stay in each layer."} if config is not Options else {}
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
            words = ast.literal_eval(after.value)
            name = ast.unparse(field.target)
            found[name] = re.sub(r"``([^`]*)``", r"`\1`", " ".join(words.split()))
    return found


def _values(field: Field[Any]) -> str:
    return "" if field.default is MISSING else f"`{field.default!r}`"


def _evidence(name: str) -> str:
    """The method's figures in the comparison, beside the baseline's."""
    run = json.loads((DOCS / "results" / "comparison.json").read_text(encoding="utf-8"))
    parts = []
    tables = {(table["task"], table["protocol"]): table for table in run["tables"]}
    for task, (figure, unit, words) in TASKS.items():
        table = tables.get(task, {"cells": []})
        rows = _figures(table["cells"], name, figure)
        if rows:
            budgets = sorted({cell["budget"] for cell in table["cells"] if cell["budget"]})
            shown = [row for row in rows if any(row[1:])]
            parts.append(
                f"{words.capitalize()} ({unit}, ± standard error):\n\n"
                + _table(("", *(f"{budget:,} rows" for budget in budgets)), shown)
            )
    if not parts:
        return "Not in the comparison's last run: [what was measured](../comparison.md)."
    where = (
        f"`integration-tests/{run['what']}`, {run['date']}, {run['machine']}, mlx {run['versions']['mlx']},"
        f" mlx-lm {run['versions']['mlx-lm']}, SmolLM2-135M, prompts of {run['prompt tokens']:,} tokens"
        " (an empty cell: not measured); all of it in [the comparison](../comparison.md)."
    )
    return "\n\n".join([*parts, where])


def _figures(cells: list[dict[str, Any]], name: str, figure: str) -> list[tuple[str, ...]]:
    budgets = sorted({cell["budget"] for cell in cells if cell["budget"]})
    asked = re.compile(rf"(\w+\()?{re.escape(name)}[():].*|{re.escape(name)}|.*\({re.escape(name)}\).*")
    labels = [cell["label"] for cell in cells if asked.fullmatch(cell["label"])]
    if not labels:
        return []
    chosen = [*dict.fromkeys([*labels, "streaming-llm"])]
    return [(label, *(_number(cells, label, budget, figure) for budget in budgets)) for label in chosen]


def _number(cells: list[dict[str, Any]], label: str, budget: int, figure: str) -> str:
    for cell in cells:
        if (cell["label"], cell["budget"]) == (label, budget) and figure in cell:
            mean, error = cell[figure][:2]
            scale, digits = (1, 3) if figure == "loss" else (100, 0)
            return f"{scale * mean:.{digits}f} ± {scale * error:.{digits}f}"
    return ""


def _departures(package: str) -> str:
    """From the package's README, where a plugin says them."""
    text = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^## Departures from the paper\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else "It is vqx's own: there is no paper to depart from."


def _paper(paper: str) -> str:
    number = re.search(r"\d{4}\.\d{5}", paper)
    return f"[{number[0]}](https://arxiv.org/abs/{number[0]})" if number else paper


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + ":---|" * len(head), *map(line, rows)])


def _filled(text: str, parts: dict[str, Callable[[], str]]) -> str:
    for name, part in parts.items():
        marks = re.compile(rf"(<!-- {name} begins -->\n).*?(<!-- {name} ends -->)", re.DOTALL)
        if not marks.search(text):
            raise ValueError(f"no place for {name}")
        said = f"\n{part()}\n\n"
        text = marks.sub(lambda match, said=said: match[1] + said + match[2], text)
    return text


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
