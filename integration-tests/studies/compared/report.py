"""Pieces of all parts put together: figures as JSON, tables between the page's markers, pictures."""

import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from vqx_eval import tables
from vqx_eval.candidates import FULL, ROTATING, STREAMING
from vqx_eval.store import Piece
from vqx_eval.summary import Cell, Spread, Table, verdict
from vqx_eval.task import Figure
from vqx_eval.tasks import load_tasks

from compared.pictures import draw

MARKERS = re.compile(r"(<!-- (\w[\w-]*) begins -->\n).*?(<!-- \2 ends -->)", re.DOTALL)
VERDICT = {"better": "**{}**", "worse": "*{}*", "even": "{}"}
FIELDS = "mean, standard error, paired difference from streaming-llm, its error, verdict (95 %)"
ENGINES = {"VeloxQuant-MLX": "VeloxQuant-MLX", "kvpress": "kvpress", ROTATING: "mlx-lm", FULL: "mlx-lm"}


def write(sources: Sequence[Path], docs: Path) -> None:
    """Read every piece and write what the documentation shows."""
    pieces, about = read(sources)
    found = tables(pieces, load_tasks())
    (docs / "results").mkdir(parents=True, exist_ok=True)
    record = {
        "what": "studies/comparison.py",
        **about,
        "seconds": seconds(pieces),
        "figures": FIELDS,
        "tables": plain(found),
    }
    (docs / "results" / "comparison.json").write_text(compact(record))
    draw(found, docs / "results")
    parts = {"run": circumstances(about), **{name(table): lines(table) for table in found}}
    parts["verdicts"] = verdicts(found)
    parts["seconds"] = timing(seconds(pieces))
    page = docs / "comparison.md"
    page.write_text(MARKERS.sub(lambda hit: filled(hit, parts), page.read_text("utf-8")), encoding="utf-8")


def filled(hit: re.Match[str], parts: dict[str, Iterator[str]]) -> str:
    """A marked stretch of the page; one that nothing was measured for stays as it is."""
    begin, part, end = hit.groups()
    return begin + "\n" + "\n".join(parts[part]) + "\n\n" + end if part in parts else hit.group()


def read(sources: Sequence[Path]) -> tuple[list[Piece], dict[str, Any]]:
    """All pieces, each once, and what their parts said about themselves."""
    pieces: dict[str, Piece] = {}
    about: dict[str, Any] = {}
    for source in sources:
        for file in sorted(source.rglob("pieces.jsonl*")) if source.is_dir() else [source]:
            text = (
                gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            ).decode()
            pieces |= {piece["key"]: piece for piece in map(json.loads, text.splitlines())}
        for file in sorted(source.rglob("about*.json")) if source.is_dir() else []:
            part = json.loads(file.read_text())
            about["logits apart"] = max(about.get("logits apart", 0), part.pop("logits apart", 0))
            about = {**part, **about, "versions": about.get("versions", {}) | part["versions"]}
    ran = {place(piece) for piece in pieces.values() if "skipped" not in piece}
    kept = [piece for piece in pieces.values() if "skipped" not in piece or refused(piece, ran)]
    about.pop("engines", None)
    return sorted(kept, key=lambda piece: (order(piece), piece["label"], piece["budget"] or 0)), about


def refused(piece: Piece, ran: set[tuple[Any, ...]]) -> bool:
    """Whether it says something about the setting: not if another run did it, nor if the machine was full."""
    return place(piece) not in ran and "out of memory" not in piece["skipped"]


def place(piece: Piece) -> tuple[Any, ...]:
    return tuple(piece[name] for name in ("task", "protocol", "label", "budget"))


def order(piece: Piece) -> tuple[Any, ...]:
    """Tasks by name; within one the full cache, streaming, mlx-lm's own, ours, then the others'."""
    label = piece["label"]
    first = [FULL, STREAMING, ROTATING]
    rank = first.index(label) if label in first else 3 + (engine(label) != "vqx") + label.startswith("kv")
    return piece["task"], piece["protocol"], rank


def engine(label: str) -> str:
    return ENGINES.get(label.split()[0] if label != FULL else FULL, "vqx")


def plain(found: Sequence[Table]) -> list[dict[str, Any]]:
    """Everything as data: means, standard errors, paired differences from streaming."""
    return [
        {
            "task": table.task.name,
            "protocol": table.protocol,
            "prompt tokens": table.length,
            "cells": [
                {"label": cell.label, "budget": cell.budget, "samples": samples(cell)}
                | ({"not run": cell.skipped} if cell.skipped else {})
                | {figure.name: figures(cell, figure) for figure in table.task.figures if cell.figures}
                for cell in table.cells
            ],
        }
        for table in found
    ]


def figures(cell: Cell, figure: Figure) -> list[Any]:
    """As FIELDS says; without a pair, mean and error alone."""
    own, over = cell.figures[figure.name], cell.over_streaming.get(figure.name)
    found: list[Any] = [number(own.mean), number(own.error)]
    return [*found, number(over.mean), number(over.error), verdict(figure, over)] if over else found


def samples(cell: Cell) -> int:
    return max((spread.samples for spread in cell.figures.values()), default=0)


def number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)


def compact(record: dict[str, Any]) -> str:
    """JSON with one cell a line."""
    text = re.sub(r"\n {5,}", " ", json.dumps(record, indent=1))
    return re.sub(r"\n    ([}\]])", r" \1", text) + "\n"


def name(table: Table) -> str:
    return "-".join(filter(None, (table.task.name, table.protocol.replace("plain", ""))))


SHOWN = {"continuation": "loss"}
"""The figure that a task's table shows; else its first."""


def lines(table: Table) -> Iterator[str]:
    """A line a setting, a column a budget."""
    shown = next(f for f in table.task.figures if f.name == SHOWN.get(table.task.name, f.name))
    budgets = sorted({cell.budget for cell in table.cells if cell.budget is not None})
    rows: dict[str, dict[int | None, Cell]] = defaultdict(dict)
    for cell in table.cells:
        rows[cell.label][cell.budget] = cell
    yield "| | " + " | ".join(f"{budget:,} rows" for budget in budgets) + " |"
    yield "|:---|" + "---:|" * len(budgets)
    for label, cells in rows.items():
        texts = [entry(shown, cells.get(budget, cells.get(None))) for budget in budgets]
        yield f"| {label} | {' | '.join(texts)} |"
    counts = sorted({samples(cell) for cell in table.cells if cell.figures})
    yield ""
    said = f"{shown.name}, {shown.unit}{' (%)' if shown.percent else ''}"
    yield f"{said[0].upper()}{said[1:]}; {' to '.join(map(str, counts))} samples, ± standard error."


def entry(figure: Figure, cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if not cell.figures:
        return "refused" if not cell.skipped.startswith("failed") else "fails"
    text = said(figure, cell.figures[figure.name])
    over = cell.over_streaming.get(figure.name)
    return VERDICT[verdict(figure, over)].format(text) if over and not cell.whole else text


def said(figure: Figure, spread: Spread) -> str:
    scale, digits = (100, 0) if figure.percent else (1, 3)
    return f"{scale * spread.mean:.{digits}f} ± {scale * spread.error:.{digits}f}"


def verdicts(found: Sequence[Table]) -> Iterator[str]:
    """How often each setting loses to streaming of the same budget, and wins, over all tasks."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for table in found:
        figure = next(f for f in table.task.figures if f.name == SHOWN.get(table.task.name, f.name))
        for cell in table.cells:
            if figure.name in cell.over_streaming and not cell.whole:
                counts[cell.label][verdict(figure, cell.over_streaming[figure.name])] += 1
    yield "| | loses | even | wins |"
    yield "|:---|---:|---:|---:|"
    for label, by in sorted(counts.items(), key=lambda item: (item[1]["worse"] - item[1]["better"], item[0])):
        yield f"| {label} | {by['worse']} | {by['even']} | {by['better']} |"


def seconds(pieces: Sequence[Piece]) -> dict[str, dict[str, float]]:
    """Median seconds of a sample for each task and engine, while other processes shared the machine."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for piece in pieces:
        if "seconds" in piece:
            kind = engine(piece["label"])
            times[kind, piece["task"]].append(piece["seconds"] / len(piece["samples"]))
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (kind, task), each in sorted(times.items()):
        found[kind][task] = round(median(each), 4)
    return found


def timing(found: dict[str, dict[str, float]]) -> Iterator[str]:
    tasks = sorted({task for times in found.values() for task in times})
    yield "| seconds a sample, median | " + " | ".join(tasks) + " |"
    yield "|:---|" + "---:|" * len(tasks)
    for kind, times in found.items():
        yield f"| {kind} | " + " | ".join(f"{times[t]:.3f}" if t in times else "-" for t in tasks) + " |"


def circumstances(about: dict[str, Any]) -> Iterator[str]:
    if not about:
        return
    yield f"- Machine: {about['machine']}, Python {about['python']}, {about['date']}"
    versions = {"vqx": "from source"} | about["versions"]
    yield "- Versions: " + ", ".join(f"{name} {number}" for name, number in versions.items())
    kinds = sorted({re.sub(r"-\d+\.txt$", "", text) for text in about["texts"]})
    yield f"- Texts: {len(about['texts'])} of {len(kinds)} kinds ({', '.join(kinds)}), seed {about['seed']}"
    yield f"- Prompts: {about['prompt tokens']:,} tokens, and the question where there is one"
    if about["logits apart"]:
        apart = about["logits apart"]
        yield f"- Full cache in transformers and in mlx-lm: logits at most {apart:.0e} apart"
