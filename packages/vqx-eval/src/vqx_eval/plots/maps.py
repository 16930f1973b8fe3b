"""Which tokens each layer kept of the first sample of a task, and where the answer stood."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vqx_eval.plots.style import sheet
from vqx_eval.report import PROTOCOL
from vqx_eval.store import Piece

FACT = "#D55E00"
MOST = 8
"""Candidates in one picture."""


def maps(pieces: Sequence[Piece]) -> Iterator[tuple[str, Any]]:
    """For each task and protocol at its longest text and its middle budget: a strip for each candidate."""
    noted = [piece for piece in pieces if piece.get("map")]
    for task, protocol in dict.fromkeys((piece["task"], piece["protocol"]) for piece in noted):
        ours = [piece for piece in noted if (piece["task"], piece["protocol"]) == (task, protocol)]
        sizes = sorted({piece["budget"] for piece in ours})
        length, budget = max(piece["length"] for piece in ours), sizes[len(sizes) // 2]
        here = [piece for piece in ours if (piece["length"], piece["budget"]) == (length, budget)][:MOST]
        drawn, axes = sheet(len(here), 1, width=8.5, height=1.15)
        said = f"{task}{PROTOCOL[protocol]}:\ntokens kept of the first sample, {budget:,} rows per layer"
        if here[0]["samples"][0].get("places"):
            said += "; shaded: what is asked for"
        drawn.suptitle(said, fontsize=10)
        for axis, piece in zip(axes[:, 0], here, strict=True):
            _strip(axis, piece)
        axes[-1][0].set_xlabel("token of the text")
        yield f"kept-{task}-{protocol}", drawn


def _strip(axis: Any, piece: Piece) -> None:
    shares = np.array([[int(digit) for digit in layer] for layer in piece["map"]]) / 9
    axis.imshow(shares, cmap="Greys", vmin=0, vmax=1.1, aspect="auto", interpolation="nearest")
    axis.set_title(piece["label"], loc="left", fontsize=9)
    axis.set_ylabel("layer")
    axis.set_yticks([0, len(shares) - 1])
    for first, last in piece["samples"][0].get("places", [])[:1]:
        axis.axvspan(first - 0.5, last - 0.5, color=FACT, alpha=0.25, linewidth=0)
