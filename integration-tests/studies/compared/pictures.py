"""Quality against budget: a panel for each family of settings, everything else in grey behind it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vqx_eval.candidates import FULL, ROTATING, STREAMING
from vqx_eval.plots.style import COLOURS, GREY, MARKERS, sheet
from vqx_eval.summary import Table
from vqx_eval.task import Figure

PANELS: dict[str, tuple[str, ...]] = {
    "several scores together": (
        "fusion",
        "layerwise(fusion)",
        "layerwise(fusion):beyond=expected",
        "fusion:beyond=expected",
        "layerwise",
    ),
    "attention, gathered": (
        "h2o",
        "h2o:normalise=None",
        "h2o:decay=0.98,recent=32,normalise=None",
        "keyformer",
        "ada(h2o)",
    ),
    "attention of the latest": ("tova", "tova:heads=each", "snapkv", "morphkv", "r-kv", "critical"),
    "keys and values alone": ("keydiff", "l2norm", "lagkv", "qfilters", "expected-attention"),
    "shared out, chunks, merged": ("pyramidkv", "squeezeattention", "chunkkv", "cam", "kvzip"),
    "queries and cadence": (
        "h2o",
        "h2o:queries=keys",
        "h2o:queries=centred-keys",
        "h2o:interval=32",
        "h2o:cadence=token",
    ),
    "VeloxQuant-MLX": tuple(
        f"VeloxQuant-MLX {method}" for method in ("h2o", "keyformer", "tova", "snapkv", "morphkv", "knorm")
    ),
    "kvpress": tuple(
        f"kvpress {press}Press"
        for press in ("SnapKV", "TOVA", "ExpectedAttention", "ObservedAttention", "KeyDiff", "LagKV")
    ),
}
ALWAYS = {FULL: (GREY, "--"), STREAMING: ("#000000", "-"), ROTATING: (GREY, ":")}
COLUMNS = 4


def draw(found: Sequence[Table], folder: Path) -> None:
    """``comparison-loss.png``, and ``comparison-<task>-<protocol>.png`` for what is to be found again."""
    for table in found:
        task = table.task
        wanted = "loss" if task.name == "continuation" else task.figures[0].name
        figure = next(one for one in task.figures if one.name == wanted)
        name = "loss" if task.name == "continuation" else f"{task.name}-{table.protocol}"
        picture(table, figure).savefig(folder / f"comparison-{name}.png", dpi=140)


def picture(table: Table, figure: Figure) -> Any:
    scale = 100 if figure.percent else 1
    series: dict[str, list[tuple[int, float, float]]] = {}
    for cell in table.cells:
        if cell.figures:
            spread = cell.figures[figure.name]
            series.setdefault(cell.label, []).append(
                (cell.budget or 0, scale * spread.mean, scale * spread.error)
            )
    sizes = sorted({budget for points in series.values() for budget, *_ in points if budget})
    panels = {title: [label for label in some if label in series] for title, some in PANELS.items()}
    panels = {title: some for title, some in panels.items() if some}
    rows = -(-len(panels) // COLUMNS)
    drawn, axes = sheet(rows, min(COLUMNS, len(panels)), width=3.7, height=3.9)
    top = max((max(y for _, y, _ in points) for points in series.values()), default=1)
    streaming = max((y for _, y, _ in series.get(STREAMING, [])), default=top)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, labels) in zip(axes.flat, panels.items(), strict=False):
        axis.set_title(title, fontsize=10, loc="left", fontweight="bold")
        for label, points in series.items():
            if label not in labels and label not in ALWAYS:
                line(axis, points, color="#d9d9d9", linewidth=0.7, zorder=1)
        for label, (color, stroke) in ALWAYS.items():
            if label in series:
                line(axis, series[label], sizes, color=color, linestyle=stroke, zorder=2, label=label)
        for number, label in enumerate(labels):
            aside = 2 ** (0.14 * ((number + 0.5) / len(labels) - 0.5))
            axis.errorbar(
                [aside * budget for budget, *_ in series[label]],
                [y for _, y, _ in series[label]],
                yerr=[error for *_, error in series[label]],
                color=COLOURS[number],
                marker=MARKERS[number],
                markersize=4.5,
                linewidth=1.4,
                elinewidth=0.8,
                capsize=2,
                zorder=3,
                label=label.removeprefix("VeloxQuant-MLX ").removeprefix("kvpress "),
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        axis.set_ylim(*((-3, 103) if figure.percent else (-0.03 * streaming, 1.6 * streaming)))
        axis.grid(axis="y", color="#eeeeee", linewidth=0.6)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=7.5, frameon=False, ncols=2)
    unit = f"{figure.name}, %" if figure.percent else f"{figure.name}, {figure.unit}"
    drawn.supylabel(f"{unit}   ({'lower' if figure.better == 'lower' else 'higher'} is better)", fontsize=9)
    drawn.supxlabel("rows kept per layer; grey: all other settings", fontsize=9)
    protocol = {"plain": "", "aware": ", question in the prompt", "agnostic": ", question after the context"}
    count = max(cell.figures[figure.name].samples for cell in table.cells if cell.figures)
    drawn.suptitle(
        f"{table.task.name}{protocol[table.protocol]}: {table.length:,} tokens, {count} samples,"
        " means ± standard errors",
        fontsize=11,
    )
    return drawn


def line(
    axis: Any, points: Sequence[tuple[int, float, float]], sizes: Sequence[int] = (), **how: Any
) -> None:
    """A line over budgets; what has no budget is level."""
    if points[0][0] == 0 and sizes:
        axis.plot([sizes[0], sizes[-1]], [points[0][1]] * 2, **how)
    else:
        axis.plot([budget for budget, *_ in points], [y for _, y, _ in points], **how)
