"""From pieces to figures: means with their standard error, and differences from streaming, paired."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vqx_eval.candidates import STREAMING
from vqx_eval.store import Piece
from vqx_eval.task import Figure, Task

FEWEST = 3
"""Samples from which a difference may be called one."""


class Spread(NamedTuple):
    """A mean over samples with its standard error (NaN from one sample)."""

    mean: float
    error: float
    samples: int


class Cell(NamedTuple):
    """One candidate at one budget on one task."""

    label: str
    budget: int | None
    figures: dict[str, Spread]
    over_streaming: dict[str, Spread]  # paired; empty for the full cache and for streaming itself
    skipped: str = ""
    rows: float = math.nan  # kept at the end, a mean over layers
    whole: bool = False  # bounded, and yet nothing was evicted: the figures say nothing about the method


class Table(NamedTuple):
    """All candidates on one task, under one protocol, at one length."""

    task: Task
    protocol: str
    length: int
    cells: list[Cell]


def tables(pieces: Iterable[Piece], tasks: Mapping[str, Task]) -> list[Table]:
    """Pieces put together by task, protocol and length, in their own order."""
    grouped: dict[tuple[str, str, int], list[Piece]] = defaultdict(list)
    for piece in pieces:
        grouped[piece["task"], piece["protocol"], piece["length"]].append(piece)
    return [
        Table(tasks[name], protocol, length, _cells(tasks[name].figures, group))
        for (name, protocol, length), group in grouped.items()
    ]


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard error of independent samples."""
    many = np.asarray(values, dtype=np.float64)
    error = float(many.std(ddof=1) / math.sqrt(len(many))) if len(many) > 1 else math.nan
    return Spread(float(many.mean()), error, len(many))


def verdict(figure: Figure, difference: Spread) -> str:
    """``better``, ``worse`` or ``even``: whether 0 lies outside a paired difference's 95 % interval."""
    if (
        difference.samples < FEWEST
        or abs(difference.mean) <= student(difference.samples - 1) * difference.error
    ):
        return "even"
    return "better" if (difference.mean > 0) == (figure.better == "higher") else "worse"


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, expanded about the normal's (2 % low at 4, exact from 20)."""
    return 1.96 + 2.372 / freedom + 2.823 / freedom**2


def _cells(figures: Sequence[Figure], pieces: list[Piece]) -> list[Cell]:
    samples: dict[tuple[str, int | None], dict[int, dict[str, float]]] = defaultdict(dict)
    skipped: dict[tuple[str, int | None], str] = {}
    rows: dict[tuple[str, int | None], float] = {}
    evicted: dict[tuple[str, int | None], int] = {}  # -1 where that is not known
    for piece in pieces:
        where = piece["label"], piece["budget"]
        samples[where].update({sample["number"]: sample for sample in piece["samples"]})
        skipped[where] = piece.get("skipped", "")
        rows[where] = piece.get("rows", math.nan)
        evicted[where] = max(evicted.get(where, -1), piece.get("evicted", -1))
    cells = []
    for (label, budget), own in samples.items():
        beside = samples.get((STREAMING, budget), {})
        paired = [] if label == STREAMING or budget is None else [n for n in own if n in beside]
        names = [figure.name for figure in figures] if own else []
        cells.append(
            Cell(
                label,
                budget,
                {name: spread([sample[name] for sample in own.values()]) for name in names},
                {name: spread([own[n][name] - beside[n][name] for n in paired]) for name in names if paired},
                skipped[label, budget],
                rows[label, budget],
                evicted[label, budget] == 0,
            )
        )
    return cells
