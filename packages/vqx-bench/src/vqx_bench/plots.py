"""Ratios over rows kept (or tokens read), a panel for each number of sequences."""

from collections.abc import Sequence
from pathlib import Path

from vqx.pictures import legend, looks, sheet

from vqx_bench.report import TITLES
from vqx_bench.runs import Row


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """A PNG file for each thing measured."""
    look = looks(row.contender for row in rows)
    files = []
    for what in dict.fromkeys(row.what for row in rows):
        ours = [row for row in rows if row.what == what]
        batches = sorted({row.sequences for row in ours})
        figure, axes = sheet(1, len(batches), height=3.2)
        figure.suptitle(TITLES[what], fontsize=10)
        for axis, batch in zip(axes[0], batches, strict=True):
            for label in dict.fromkeys(row.contender for row in ours):
                mine = [row for row in ours if (row.contender, row.sequences) == (label, batch)]
                across = [row.tokens if what == "prompt" else row.rows for row in mine]
                middle = [row.measured.ratio for row in mine]
                low = [row.measured.ratio - row.measured.ratio_least for row in mine]
                high = [row.measured.ratio_most - row.measured.ratio for row in mine]
                axis.errorbar(across, middle, yerr=[low, high], label=label, markersize=4, linewidth=1.3,
                              elinewidth=0.8, capsize=2, **look[label]._asdict())  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_title(f"{batch} sequence{'s' if batch > 1 else ''}", fontsize=9, loc="left")
            axis.set_xlabel("tokens read" if what == "prompt" else "rows kept per layer")
            axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes[0][0].set_ylabel("time, as a ratio  ↓ better")
        legend(figure, list(dict.fromkeys(row.contender for row in ours)), look)
        files.append(folder / f"{what}.png")
        figure.savefig(files[-1], dpi=150)
    return files
