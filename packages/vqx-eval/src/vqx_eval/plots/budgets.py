"""Quality against budget: a picture for each task, a panel for each protocol, length and figure."""

from collections.abc import Iterator, Sequence
from typing import Any

from vqx_eval.plots.style import Look, legend, sheet, wrapped
from vqx_eval.report import title
from vqx_eval.summary import Table
from vqx_eval.task import Figure

SPREAD = 0.25
"""Of candidates about their budget, in doublings."""


def budgets(tables: Sequence[Table], look: dict[str, Look]) -> Iterator[tuple[str, Any]]:
    """Lines over budgets with standard errors; dots beside each other where there is one budget only."""
    for name in dict.fromkeys(table.task.name for table in tables):
        ours = [table for table in tables if table.task.name == name]
        figures = ours[0].task.figures
        drawn, axes = sheet(len(ours), len(figures))
        for line, table in zip(axes, ours, strict=True):
            line[0].set_title(title(table), fontsize=9, loc="left")
            for axis, figure in zip(line, figures, strict=True):
                _panel(axis, table, figure, look)
        legend(drawn, list(dict.fromkeys(cell.label for table in ours for cell in table.cells)), look)
        yield f"budget-{name}", drawn


def _panel(axis: Any, table: Table, figure: Figure, look: dict[str, Look]) -> None:
    scale = 100 if figure.percent else 1
    cells = [cell for cell in table.cells if not cell.skipped]
    sizes = sorted({cell.budget for cell in cells if cell.budget is not None})
    labels = list(dict.fromkeys(cell.label for cell in cells))
    for number, label in enumerate(labels):
        own = [cell for cell in cells if cell.label == label]
        values = [scale * cell.figures[figure.name].mean for cell in own]
        errors = [scale * cell.figures[figure.name].error for cell in own]
        how = look[label]
        if own[0].budget is None:
            axis.axhline(values[0], color=how.color, linestyle=how.linestyle, linewidth=1.3, zorder=1)
            continue
        # a little aside of each other, so that equal figures do not hide behind one another
        aside = 2 ** (SPREAD * (number / len(labels) - 0.5))
        axis.errorbar(
            [aside * (cell.budget or 0) for cell in own], values, yerr=errors, color=how.color,
            marker=how.marker, linestyle=how.linestyle, markersize=4, linewidth=1.3, elinewidth=0.8,
            capsize=2,
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
    if len(sizes) == 1:
        axis.set_xlim(sizes[0] / 1.5, sizes[0] * 1.5)
    axis.set_xlabel("rows kept per layer")
    arrow = "↓ better" if figure.better == "lower" else "↑ better"
    axis.set_ylabel(wrapped(f"{figure.name}{' (%)' if figure.percent else ''}  {arrow}", 30))
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
