"""Loss and divergence along the tokens that follow: does a cache drift, or does it stay where it was?"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vqx_eval.plots.style import Look, legend, sheet
from vqx_eval.report import title
from vqx_eval.store import Piece
from vqx_eval.summary import Table

ALONG = " by position"


def positions(
    tables: Sequence[Table], pieces: Sequence[Piece], look: dict[str, Look]
) -> Iterator[tuple[str, Any]]:
    """For each table whose samples have figures along the sequence: a panel for each budget."""
    for table in tables:
        along = [figure for figure in table.task.figures if _lines(table, pieces, figure.name + ALONG)]
        for figure in along[:1]:
            lines = _lines(table, pieces, figure.name + ALONG)
            sizes = sorted({budget for _, budget in lines if budget is not None})
            drawn, axes = sheet(1, max(len(sizes), 1))
            for axis, size in zip(axes[0], sizes, strict=False):
                axis.set_title(f"{title(table)}, {size:,} rows", fontsize=9)
                for (label, budget), values in lines.items():
                    if budget in (None, size):
                        _line(axis, table, values, look[label])
                axis.set_ylabel(f"{figure.name}  {'↓' if figure.better == 'lower' else '↑'} better")
                axis.grid(axis="y", color="#dddddd", linewidth=0.6)
            legend(drawn, list(dict.fromkeys(label for label, _ in lines)), look)
            yield f"position-{table.task.name}-{table.length}", drawn


def _lines(table: Table, pieces: Sequence[Piece], name: str) -> dict[tuple[str, int | None], Any]:
    """Means over samples, ``[bins]``, by label and budget."""
    found: dict[tuple[str, int | None], list[list[float]]] = defaultdict(list)
    here = table.task.name, table.protocol, table.length
    for piece in pieces:
        if (piece["task"], piece["protocol"], piece["length"]) == here:
            along = [sample[name] for sample in piece["samples"] if name in sample]
            if along:
                found[piece["label"], piece["budget"]] += along
    return {where: np.mean(many, axis=0) for where, many in found.items()}


def _line(axis: Any, table: Table, values: Any, how: Look) -> None:
    share = (np.arange(len(values)) + 0.5) / len(values)
    if table.task.name == "stream":
        axis.plot(share * table.length, values, color=how.color, linestyle=how.linestyle, marker=how.marker,
                  markersize=3, linewidth=1.3)  # fmt: skip
        axis.set_xlabel("position in the stream (tokens)")
        return
    axis.plot(100 * share, values, color=how.color, linestyle=how.linestyle, marker=how.marker,
              markersize=3, linewidth=1.3)  # fmt: skip
    axis.set_xlabel("% of the tokens after the prompt")
