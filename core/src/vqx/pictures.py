"""One style for all pictures: colours that colour-blind people tell apart, shapes that survive print.

The one module that wants matplotlib, which the core does not ask for: packages that draw do.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

# Any, since types are checked without the extra that brings matplotlib
Figure: Any = import_module("matplotlib.figure").Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B")  # after Okabe and Ito
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<", ">")
STROKES = ("-", "--", "-.", ":")
GREY = "#777777"


class Look(NamedTuple):
    """How a candidate is drawn in every picture of a run."""

    color: str
    marker: str
    linestyle: str


def looks(labels: Iterable[str], fixed: Mapping[str, Look] = {}) -> dict[str, Look]:
    """One look for each label, the same whatever else is drawn beside it; ``fixed`` are looks that stand."""
    found = dict(fixed)
    free = [label for label in dict.fromkeys(labels) if label not in fixed]
    for number, label in enumerate(free):
        turn, place = divmod(number, len(COLOURS))
        stroke = STROKES[turn % len(STROKES)]
        found[label] = Look(COLOURS[place], MARKERS[number % len(MARKERS)], stroke)
    return found


def sheet(
    rows: int,
    columns: int,
    *,
    width: float = 3.6,
    height: float = 2.7,
    heights: Sequence[float] | None = None,
) -> tuple[Any, Any]:
    """A figure and its axes ``[rows, columns]``, of one ``height`` or of one for each row; in inches."""
    each = [height] * rows if heights is None else [*heights]
    figure = Figure(figsize=(width * columns + 0.4, sum(each) + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, height_ratios=each)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.xaxis.label.set_size(9)
        axis.yaxis.label.set_size(9)
    return figure, axes


def legend(figure: Any, labels: Sequence[str], look: dict[str, Look]) -> None:
    """One legend below all axes."""
    line = import_module("matplotlib.lines").Line2D
    handles = [
        line([], [], label=label, color=look[label].color, marker=look[label].marker,
             linestyle=look[label].linestyle, markersize=4, linewidth=1.3)
        for label in labels
    ]  # fmt: skip
    columns = min(len(handles), max(1, int(figure.get_figwidth() / 2.0)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def wrapped(text: str, width: int = 44) -> str:
    """A title over as many lines as it needs."""
    return "\n".join(import_module("textwrap").wrap(text, width))
