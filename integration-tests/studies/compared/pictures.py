"""Quality against budget: a panel for each family of settings, everything else in grey behind it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D
from vqx_eval.candidates import FULL, ROTATING, STREAMING
from vqx_eval.plots.style import COLOURS, GREY, MARKERS, sheet
from vqx_eval.summary import Table
from vqx_eval.task import Figure

PANELS: dict[str, tuple[str, ...]] = {
    "several scores, layers unlike": (
        "fusion",
        "layerwise(fusion)",
        "layerwise(fusion):beyond=expected",
        "layerwise(h2o)",
        "layerwise(tova)",
    ),
    "attention, gathered": (
        "h2o",
        "h2o:normalise=None",
        "h2o:decay=0.98,recent=32,normalise=None",
        "keyformer",
        "ada(h2o)",
    ),
    "attention of the latest": ("tova", "tova:heads=each", "snapkv", "morphkv", "r-kv"),
    "around others": ("ada(snapkv)", "critical(snapkv)", "chunkkv", "chunkkv(h2o)", "cam"),
    "keys and values alone": ("keydiff", "l2norm", "lagkv", "qfilters", "expected-attention"),
    "shared out, repeated, rounded": (
        "pyramidkv",
        "squeezeattention",
        "kvzip",
        "h2o:bits=8",
        "h2o:bits=4",
    ),
    "h2o: queries and cadence": (
        "h2o",
        "h2o:queries=keys",
        "h2o:queries=centred-keys",
        "h2o:interval=32",
        "h2o:cadence=token",
    ),
    "tova: queries and cadence": (
        "tova",
        "tova:queries=keys",
        "tova:queries=centred-keys",
        "tova:interval=32",
        "tova:cadence=token",
    ),
    "keyformer, morphkv": (
        "keyformer",
        "keyformer:queries=keys",
        "keyformer:queries=centred-keys",
        "morphkv",
        "morphkv:queries=keys",
        "morphkv:queries=centred-keys",
    ),
    "VeloxQuant-MLX": tuple(
        f"VeloxQuant-MLX {method}"
        for method in ("h2o", "tova", "snapkv", "streaming_llm", "knorm", "keyformer", "morphkv")
    ),
    "kvpress": tuple(
        f"kvpress {press}Press"
        for press in ("SnapKV", "TOVA", "ExpectedAttention", "ObservedAttention", "KeyDiff", "LagKV")
    ),
    "kvpress, again": tuple(
        f"kvpress {press}"
        for press in (
            "KnormPress",
            "StreamingLLMPress",
            "PyramidKVPress",
            "ChunkKVPress(SnapKV)",
            "AdaKVPress(ExpectedAttention)",
        )
    ),
}
ALWAYS = {FULL: (GREY, "--", ""), STREAMING: ("#000000", "-", "."), ROTATING: (GREY, ":", "x")}
DRAWN = ("continuation", "passkey", "needle-prose")
COLUMNS = 4
ABOVE, BELOW, BETWEEN, BESIDE = 0.85, 1.75, 1.6, 0.75  # inches around panels, for titles and legends


def draw(found: Sequence[Table], folder: Path) -> None:
    """``comparison-loss.png``, and ``comparison-<task>-<protocol>.png`` for pass keys and prose."""
    for table in (table for table in found if table.task.name in DRAWN):
        task = table.task
        wanted = "loss" if task.name == "continuation" else task.figures[0].name
        figure = next(one for one in task.figures if one.name == wanted)
        name = "loss" if task.name == "continuation" else f"{task.name}-{table.protocol}"
        picture(table, figure).savefig(folder / f"comparison-{name}.png", dpi=110)


def picture(table: Table, figure: Figure) -> Any:
    scale = 100 if figure.percent else 1
    series: dict[str, list[tuple[int, float, float]]] = {}
    counts: dict[str, int] = {}
    for cell in table.cells:
        if cell.figures:
            spread = cell.figures[figure.name]
            counts[cell.label] = spread.samples
            series.setdefault(cell.label, []).append(
                (cell.budget or 0, scale * spread.mean, scale * spread.error)
            )
    sizes = sorted({budget for points in series.values() for budget, *_ in points if budget})
    panels = {title: [label for label in some if label in series] for title, some in PANELS.items()}
    panels = {title: some for title, some in panels.items() if len(some) > 1}
    columns = 3 if len(panels) <= 6 and len(panels) != 4 else COLUMNS
    rows = max(1, -(-len(panels) // columns))
    drawn, axes = sheet(rows, columns, width=3.7, height=3.9)
    shown = {*ALWAYS, *(label for some in panels.values() for label in some)} & {*series}
    top = max((y + error for label in shown for _, y, error in series[label]), default=1)
    streaming = max((y for _, y, _ in series.get(STREAMING, [])), default=top)
    low, high = (-3, 103) if figure.percent else (-0.03 * streaming, min(1.03 * top, 2.2 * streaming))
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, labels) in zip(axes.flat, panels.items(), strict=False):
        fewer = min(count for label, count in counts.items() if label in labels)
        title += f" ({fewer} samples)" if fewer < max(counts.values()) else ""
        axis.set_title(title, fontsize=10, loc="left", fontweight="bold")
        for label, points in series.items():
            if label not in labels and label not in ALWAYS:
                line(axis, points, sizes, color="#d9d9d9", linewidth=0.7, zorder=1)
        for label, (color, stroke, marker) in ALWAYS.items():
            if label in series:
                how = {"color": color, "linestyle": stroke, "marker": marker, "markersize": 5}
                line(axis, series[label], sizes, linewidth=1.4, zorder=2, **how)
        names = [short(label) + " (above)" * (min(y for _, y, _ in series[label]) > high) for label in labels]
        for number, label in enumerate(labels):
            aside = 2 ** (0.14 * ((number + 0.5) / len(labels) - 0.5))
            known = {budget: (y, error) for budget, y, error in series[label]}
            found = [known.get(size, (math.nan, math.nan)) for size in sizes]  # a gap where nothing is known
            axis.errorbar(
                [aside * size for size in sizes],
                [y for y, _ in found],
                yerr=[error for _, error in found],
                color=COLOURS[number],
                marker=MARKERS[number],
                markersize=4.5,
                linewidth=1.4,
                elinewidth=0.8,
                capsize=2,
                zorder=3,
                label=names[number],
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        axis.set_ylim(low, high)
        axis.grid(axis="y", color="#eeeeee", linewidth=0.6)
        widest = max(map(len, names)) > 17
        axis.legend(
            loc="upper left",
            bbox_to_anchor=(-0.1, -0.09),
            fontsize=8,
            frameon=False,
            ncols=1 if widest else 2,
            columnspacing=1.0,
            handlelength=1.6,
        )
    everywhere = {**ALWAYS, "all other settings": ("#d9d9d9", "-", "")}
    drawn.legend(
        handles=[
            Line2D([], [], color=color, linestyle=stroke, marker=marker, label=label)
            for label, (color, stroke, marker) in everywhere.items()
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - 0.2 / drawn.get_figheight()),
        ncols=4,
        fontsize=9,
        frameon=False,
    )
    drawn.set_layout_engine(None)  # legends below panels are no part of a layout
    height, width = drawn.get_figheight(), drawn.get_figwidth()
    panel = (height - ABOVE - BELOW - (rows - 1) * BETWEEN) / rows
    drawn.subplots_adjust(
        left=BESIDE / width,
        right=1 - 0.1 / width,
        top=1 - ABOVE / height,
        bottom=BELOW / height,
        hspace=BETWEEN / panel,
        wspace=0.15,
    )
    unit = f"{figure.name}, %" if figure.percent else f"{figure.name}, {figure.unit}"
    drawn.supylabel(f"{unit}   ({'lower' if figure.better == 'lower' else 'higher'} is better)", fontsize=9)
    drawn.supxlabel("rows kept per layer", fontsize=9)
    protocol = {"plain": "", "aware": ", question in the prompt", "agnostic": ", question after the context"}
    drawn.suptitle(
        f"{table.task.name}{protocol[table.protocol]}: {table.length:,} tokens,"
        f" {max(counts.values())} samples, means ± standard errors",
        fontsize=11,
        y=0.99,
    )
    return drawn


def short(label: str) -> str:
    """Without the project, which the panel's title says."""
    return label.removeprefix("VeloxQuant-MLX ").removeprefix("kvpress ")


def line(axis: Any, points: Sequence[tuple[int, float, float]], sizes: Sequence[int], **how: Any) -> None:
    """A line over budgets, broken where one is missing; what has no budget is level."""
    if points[0][0] == 0:
        axis.plot([sizes[0], sizes[-1]], [points[0][1]] * 2, **how)
    else:
        known = {budget: y for budget, y, _ in points}
        axis.plot(sizes, [known.get(size, math.nan) for size in sizes], **how)
