"""The looks that candidates have in every picture, in the style of :mod:`vqx.pictures`."""

from collections.abc import Iterable

from vqx.pictures import COLOURS, GREY, MARKERS, Look, legend, sheet, wrapped
from vqx.pictures import looks as others

from vqx_eval.candidates import FULL, ROTATING, STREAMING
from vqx_eval.layers import CHANCE

__all__ = [
    "COLOURS",
    "FIXED",
    "GREY",
    "MARKERS",
    "Look",
    "legend",
    "looks",
    "sheet",
    "wrapped",
]

FIXED = {
    FULL: Look(GREY, "", "--"),
    STREAMING: Look("#000000", "o", "-"),
    ROTATING: Look(GREY, "x", ":"),
    CHANCE: Look(GREY, "+", ":"),
}


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """One look for each label, the same whatever else is drawn beside it."""
    return others(labels, FIXED)
