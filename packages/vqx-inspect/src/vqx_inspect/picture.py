"""A recording as one picture: the text with its words shaded, and below it every head beside every token."""

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from vqx.pictures import COLOURS, sheet

from vqx_inspect.recording import Recording

COLUMNS = 100
"""Characters in a line."""


class _Word(NamedTuple):
    token: int
    text: str
    line: int
    column: int


def picture(recording: Recording, texts: Sequence[str], title: str, step: int = -1) -> Any:
    """A matplotlib figure; the more heads hold a token, the darker it stands.

    Args:
        texts: of each token.
        step: which of the recording's, the last one by default.
    """
    step %= len(recording.steps)
    share = recording.share(step)
    words = [*_laid_out(texts[: len(share)])]
    lines = 1 + max(word.line for word in words)
    rows = sum(len(gone) for gone in recording.gone)
    figure, axes = sheet(2, 1, width=8.4, heights=(0.19 * lines, max(1.0, min(2.4, rows / 40))))
    figure.suptitle(title, fontsize=10)
    _text(axes[0, 0], words, share, lines, recording.prompt)
    held = np.concatenate(recording.gone)[:, : len(share)] > step
    axis = axes[1, 0]
    axis.imshow(held, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axis.set_xlabel("token of the text")
    axis.set_ylabel("layers, heads")
    ends = np.cumsum([len(gone) for gone in recording.gone])
    places = [0, len(ends) // 2, len(ends) - 1]
    axis.set_yticks([ends[p] - len(recording.gone[p]) for p in places], [recording.layers[p] for p in places])
    if recording.prompt < len(share):
        axis.axvline(recording.prompt - 0.5, color=COLOURS[1], linestyle="--", linewidth=1)
    return figure


def _text(axis: Any, words: Sequence[_Word], share: Any, lines: int, prompt: int) -> None:
    box = import_module("matplotlib.patches").Rectangle
    shade = import_module("matplotlib").colormaps["Blues"]
    axis.set(xlim=(0, COLUMNS), ylim=(lines, 0))
    axis.set_axis_off()
    for token, text, line, column in words:
        part = float(share[token])
        if part:
            axis.add_patch(box((column, line + 0.04), len(text), 0.92, color=shade(0.1 + 0.8 * part)))
        if token >= prompt:
            axis.plot([column, column + len(text)], [line + 0.97] * 2, color=COLOURS[1], linewidth=1.4)
        ink = "white" if part > 0.55 else "black" if part else "#999999"
        for place, letter in enumerate(text):  # one by one: a cell is a cell in any font
            axis.text(column + place + 0.5, line + 0.52, letter, color=ink, fontsize=8.5, ha="center",
                      va="center", family="monospace", parse_math=False)  # fmt: skip


def _laid_out(texts: Sequence[str]) -> Iterator[_Word]:
    """Each token at its place, lines broken between words; of a token that holds a line's end, its parts."""
    line = column = 0
    for word in _words(texts):
        if word[0][1] == "\n":
            line, column = line + 1, 0
            continue
        if column and column + sum(len(text) for _, text in word) > COLUMNS:
            line, column = line + 1, 0
            word = [(word[0][0], word[0][1].lstrip()), *word[1:]]
        for token, text in word:
            while text:
                if column == COLUMNS:
                    line, column = line + 1, 0
                here, text = text[: COLUMNS - column], text[COLUMNS - column :]
                yield _Word(token, here, line, column)
                column += len(here)


def _words(texts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Tokens with their texts, those of a word and its signs together; the end of a line by itself."""
    word: list[tuple[int, str]] = []
    for token, text in enumerate(texts):
        for part in re.findall(r"\n|[^\n]+", text):
            if word and (part[0].isspace() or word[-1][1][-1].isspace()):
                yield word
                word = []
            word.append((token, part))
    if word:
        yield word
