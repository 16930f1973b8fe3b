"""Ratios over rows kept (or tokens read), a panel for each number of sequences.

A method has one colour and marker, and a stroke for each of its cadences.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from vqx.pictures import GREY, STROKES, Look, legend, looks, sheet

from vqx_bench.contenders import ROTATING
from vqx_bench.report import TITLES
from vqx_bench.runs import Row

WIDTH = 7.0
"""Inches that a title and a legend of long names take."""

APART = 1.02
"""What one contender stands to the right of another, whose spread it would hide."""


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """A PNG file for each thing measured."""
    look = looks_of(list(dict.fromkeys(row.contender for row in rows)))
    files = []
    for what in dict.fromkeys(row.what for row in rows):
        ours = [row for row in rows if row.what == what]
        labels = list(dict.fromkeys(row.contender for row in ours))
        batches = sorted({row.sequences for row in ours})
        figure, axes = sheet(1, len(batches), width=max(3.6, WIDTH / len(batches)), height=3.2)
        figure.suptitle(TITLES[what], fontsize=10)
        for axis, batch in zip(axes[0], batches, strict=True):
            for number, label in enumerate(labels):
                mine = [row for row in ours if (row.contender, row.sequences) == (label, batch)]
                shift = APART ** (number - len(labels) / 2)
                across = [place(row, ours) * shift for row in mine]
                middle = [row.measured.ratio for row in mine]
                low = [row.measured.ratio - row.measured.ratio_least for row in mine]
                high = [row.measured.ratio_most - row.measured.ratio for row in mine]
                axis.errorbar(across, middle, yerr=[low, high], label=label, markersize=4, linewidth=1.3,
                              elinewidth=0.8, capsize=2, **look[label]._asdict())  # fmt: skip
            ticks = sorted({place(row, ours) for row in ours})
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axis.minorticks_off()
            axis.sharey(axes[0][0])
            axis.axhline(1, color=GREY, linewidth=0.8, zorder=0)
            axis.set_title(f"{batch} sequence{'s' if batch > 1 else ''}", fontsize=9, loc="left")
            axis.set_xlabel("tokens read" if what == "prompt" else "rows kept per layer")
            axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes[0][0].set_ylabel("time, as a ratio  ↓ better")
        legend(figure, labels, look)
        files.append(folder / f"{what}.png")
        figure.savefig(files[-1], dpi=150)
    return files


def looks_of(labels: Sequence[str]) -> dict[str, Look]:
    """Contenders that differ by their cadence alone look alike but for the stroke."""
    names = {label: re.sub(r"[:,]?interval=\d+", "", label) for label in labels}
    alike = looks(names.values())
    found: dict[str, Look] = {}
    for label, name in names.items():
        before = sum(names[other] == name for other in found)
        found[label] = alike[name]._replace(linestyle=STROKES[before % len(STROKES)])
    return found


def place(row: Row, rows: Sequence[Row]) -> int:
    """Where a figure stands: over the tokens of a prompt, or the rows that all of its setting were given."""
    if row.what == "prompt":
        return row.tokens
    given = (other.rows for other in rows if other.contender == ROTATING and other.tokens == row.tokens)
    return next(given, row.rows)
