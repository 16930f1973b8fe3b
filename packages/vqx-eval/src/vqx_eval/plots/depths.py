"""The needle's heat map: how often an answer is found, by depth and by length (or by budget)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vqx_eval.plots.style import sheet, wrapped
from vqx_eval.report import PROTOCOL
from vqx_eval.store import Piece
from vqx_eval.summary import Table

WIDE = 4

Cells = dict[tuple[str, int, float], list[float]]
"""(label, row, depth) -> matches."""


def depths(tables: Sequence[Table], pieces: Sequence[Piece]) -> Iterator[tuple[str, Any]]:
    """For each task with depths: rows are lengths, a picture for each budget; or, of one length, budgets."""
    asked = [table for table in tables if table.task.group == "retrieval"]
    for task, protocol in dict.fromkeys((table.task.name, table.protocol) for table in asked):
        ours = [p for p in pieces if (p["task"], p["protocol"]) == (task, protocol) and p["samples"]]
        ours = [piece for piece in ours if len({sample.get("depth") for sample in piece["samples"]}) > 1]
        lengths = sorted({piece["length"] for piece in ours})
        sizes = sorted({piece["budget"] for piece in ours if piece["budget"]})
        said = f"{task}{PROTOCOL[protocol]}"
        if len(lengths) > 1:
            for size in sizes:
                cells = _cells([p for p in ours if p["budget"] in (None, size)], "length", lengths)
                drawn = _sheet(cells, lengths, "tokens", f"{said}: {size:,} rows kept")
                yield f"depth-{task}-{protocol}-{size}", drawn
        elif lengths:
            cells = _cells(ours, "budget", sizes)
            drawn = _sheet(cells, sizes, "rows kept", f"{said}, at {lengths[0]:,} tokens")
            yield f"depth-{task}-{protocol}", drawn


def _cells(pieces: Sequence[Piece], row: str, rows: list[int]) -> Cells:
    found: Cells = defaultdict(list)
    for piece in pieces:
        # the full cache has no budget: it stands in every row
        for place in rows if piece[row] is None else [piece[row]]:
            for sample in piece["samples"]:
                found[piece["label"], place, sample["depth"]].append(sample["match"])
    return found


def _sheet(cells: Cells, rows: list[int], heading: str, said: str) -> Any:
    labels = list(dict.fromkeys(label for label, _, _ in cells))
    steps = sorted({depth for _, _, depth in cells})
    columns = min(WIDE, len(labels))
    lines = -(-len(labels) // columns)
    drawn, axes = sheet(lines, columns, width=2.5, height=0.9 + 0.35 * len(rows))
    drawn.suptitle(f"{said}\n% of answers found, over samples", fontsize=10)
    for axis in axes.flat[len(labels) :]:
        axis.remove()
    for axis, label in zip(axes.flat, labels, strict=False):
        values = [[np.mean(cells.get((label, row, depth), [np.nan])) for depth in steps] for row in rows]
        axis.imshow(values, cmap="cividis", vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(values):
            for x, value in enumerate(line):
                ink = "white" if value < 0.5 else "black"
                axis.text(x, y, f"{100 * value:.0f}", ha="center", va="center", fontsize=8, color=ink)
        axis.set_title(wrapped(label, 28), fontsize=9)
        axis.set_xticks(range(len(steps)), [f"{100 * depth:.0f}" for depth in steps])
        axis.set_yticks(range(len(rows)), [f"{row:,}" for row in rows])
        axis.set_xticks([x - 0.5 for x in range(1, len(steps))], minor=True)
        axis.set_yticks([y - 0.5 for y in range(1, len(rows))], minor=True)
        axis.grid(which="minor", color="white", linewidth=1.5)
        axis.tick_params(which="minor", length=0)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    for axis in axes[:, 0]:
        axis.set_ylabel(heading)
    for axis in axes.flat[max(0, len(labels) - columns) : len(labels)]:
        axis.set_xlabel("depth (%)")
    return drawn
