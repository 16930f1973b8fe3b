"""Pieces of all parts put together: figures as JSON, tables between the page's markers, pictures."""

import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from vqx_eval import tables
from vqx_eval.candidates import FULL, ROTATING, STREAMING
from vqx_eval.store import Piece
from vqx_eval.summary import Cell, Table, verdict
from vqx_eval.task import Figure
from vqx_eval.tasks import load_tasks

from compared.page import filled, parts
from compared.pictures import draw

FIELDS = "mean, standard error, paired difference from streaming-llm, its error, verdict (95 %)"
KEPT = ("key", "task", "protocol", "length", "label", "budget", "seconds", "rows", "evicted", "skipped")
ENGINES = {"VeloxQuant-MLX": "VeloxQuant-MLX", "kvpress": "kvpress", ROTATING: "mlx-lm", FULL: "mlx-lm"}


def write(sources: Sequence[Path], docs: Path) -> None:
    """Read every piece and write what the documentation shows, the pieces too: the next run goes on there."""
    results = docs / "results"
    (results / "comparison").mkdir(parents=True, exist_ok=True)
    pieces = [figures_alone(piece) for piece in once(pieces_of(sources))]
    lines = "".join(json.dumps(piece, separators=(",", ":")) + "\n" for piece in pieces)
    about = json.dumps(about_of(sources), indent=1) + "\n"
    (results / "comparison" / "pieces.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    (results / "comparison" / "about.json").write_text(about)
    found, record = put_together(results / "comparison")
    (results / "comparison.json").write_text(compact(record))
    draw(found, results)
    said = parts(record)
    for page in (docs / "comparison.md", docs.parent / "README.md"):
        page.write_text(filled(page.read_text("utf-8"), said), encoding="utf-8")


def put_together(folder: Path) -> tuple[list[Table], dict[str, Any]]:
    """Tables of the pieces in a folder, and the record of them."""
    pieces = shown(pieces_of([folder]))
    found = tables(pieces, load_tasks())
    return found, {
        "what": "studies/comparison.py",
        **about_of([folder]),
        "seconds": seconds(pieces),
        "figures": FIELDS,
        "tables": plain(found),
    }


def figures_alone(piece: Piece) -> Piece:
    """A piece with what tables are made of, and nothing of where it was measured."""
    names = ["number", *(figure.name for figure in load_tasks()[piece["task"]].figures)]
    samples = [
        {name: round(sample[name], 6) for name in names if name in sample} for sample in piece["samples"]
    ]
    return {name: piece[name] for name in KEPT if name in piece} | {"samples": samples}


def shown(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of settings measured whole, in the order of the tables."""
    ran = {place(piece) for piece in pieces if "skipped" not in piece}
    kept = whole([piece for piece in pieces if "skipped" not in piece or place(piece) not in ran])
    return sorted(kept, key=lambda piece: (order(piece), piece["label"], piece["budget"] or 0))


def about_of(sources: Sequence[Path]) -> dict[str, Any]:
    """What the parts of a run said about themselves."""
    about: dict[str, Any] = {}
    for source in sources:
        for file in sorted(source.rglob("about*.json")) if source.is_dir() else []:
            part = json.loads(file.read_text())
            about["logits apart"] = max(about.get("logits apart", 0), part.pop("logits apart", 0))
            about = {**part, **about, "versions": about.get("versions", {}) | part["versions"]}
    about.pop("engines", None)
    return about


def pieces_of(sources: Sequence[Path]) -> list[Piece]:
    """Every piece in folders and files, each once, but what a full machine refused."""
    found: dict[str, Piece] = {}
    for source in sources:
        for file in sorted(source.rglob("pieces.jsonl*")) if source.is_dir() else [source]:
            raw = file.read_bytes()
            text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode()
            found |= {piece["key"]: piece for piece in map(json.loads, text.splitlines())}
    return [piece for piece in found.values() if "memory" not in piece.get("skipped", "")]


def once(pieces: Sequence[Piece]) -> list[Piece]:
    """Without what was measured again, in batches of another size, or failed and then did not."""
    known: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    kept = []
    for piece in sorted(pieces, key=lambda piece: "skipped" in piece):
        found, numbers = known[place(piece)], {sample["number"] for sample in piece["samples"]}
        if numbers - found or not found:
            kept.append(piece)
        found |= numbers or {-1}
    return kept


def whole(pieces: Sequence[Piece]) -> list[Piece]:
    """Without the settings of which a batch is missing: all of a task stand on the same samples."""
    numbers: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    for piece in pieces:
        found = numbers[place(piece)]
        found |= {sample["number"] for sample in piece["samples"]}
        most[piece["task"]] = max(most[piece["task"]], len(found))
    return [p for p in pieces if "skipped" in p or len(numbers[place(p)]) == most[p["task"]]]


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
                | ({"whole": True} if cell.whole else {})
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
