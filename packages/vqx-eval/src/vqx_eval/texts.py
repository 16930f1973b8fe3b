"""Texts to read: the user's own, or those that ship with the package; and windows cut from them."""

import re
from collections.abc import Mapping
from importlib.resources import files
from itertools import chain, islice, zip_longest
from pathlib import Path

import numpy as np

from vqx_eval.invented import invented
from vqx_eval.samples import Sample, half_of
from vqx_eval.task import Wanted


def load_texts(paths: list[Path]) -> dict[str, str]:
    """Texts by name: files, or every readable text of a folder; without paths those of the package.

    Raises:
        ValueError: a path with no text in it.
    """
    found: dict[str, str] = {}
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        read = {str(file): _read(file) for file in inside if file.is_file()}
        read = {name: text for name, text in read.items() if text.strip()}
        if not read:
            raise ValueError(f"{path}: no text to read there; give UTF-8 files or a folder of them")
        found |= read
    if not paths:
        shipped = sorted(files("vqx_eval").joinpath("prose").iterdir(), key=lambda file: file.name)
        found = {file.name.removesuffix(".txt"): file.read_text("utf-8") for file in shipped}
    return found


def windows(task: str, wanted: Wanted) -> list[Sample]:
    """Stretches of the texts, texts in turn: a context and the tokens that follow it.

    Answers never overlap, contexts of one text may; a text's windows are all in one half, unless there is
    one text only.

    Raises:
        ValueError: texts too short for a single window.
    """
    inside = wanted.length - len(wanted.prefix)
    size = inside + wanted.answer
    encoded = {name: wanted.encode(text) for name, text in wanted.texts.items()}
    starts = {name: range(0, len(ids) - size + 1, max(wanted.answer, 1)) for name, ids in encoded.items()}
    usable = [name for name, places in starts.items() if places]
    if not usable:
        longest = max(map(len, encoded.values()), default=0)
        raise ValueError(
            f"{task}: {size} tokens are wanted in a row and the longest text has {longest};"
            " give longer texts with --texts, or a smaller --prompt-tokens"
        )
    turns = chain.from_iterable(zip_longest(*([(name, at) for at in starts[name]] for name in usable)))
    chosen = [turn for turn in turns if turn is not None][: wanted.samples]
    return [
        Sample(
            task,
            number,
            half_of(usable.index(name) if len(usable) > 1 else number),
            [*wanted.prefix, *encoded[name][at : at + inside]],
            [],
            encoded[name][at + inside : at + size],
            {"text": name, "start": at, "length": wanted.length},
        )
        for number, (name, at) in enumerate(chosen)
    ]


def endless(task: str, wanted: Wanted, count: int) -> list[Sample]:
    """Streams of ``wanted.stream`` tokens: the paragraphs of all texts, each once, in a drawn order; where
    that is not enough, invented sentences go on."""
    made = []
    for number in range(count):
        draw = np.random.default_rng([wanted.seed, 23, number])
        parts = paragraphs(wanted.texts)
        ids = [*wanted.prefix, *wanted.encode("\n\n".join(parts[at] for at in draw.permutation(len(parts))))]
        marks = {"length": wanted.stream, "trained": wanted.trained, "tokens of the texts": len(ids)}
        more = invented(draw)
        while len(ids) < wanted.stream:
            ids += wanted.encode(" " + " ".join(islice(more, 100)))
        made.append(Sample(task, number, half_of(number), ids[: wanted.stream], [], [], marks))
    return made


def paragraphs(texts: Mapping[str, str]) -> list[str]:
    """Of all texts, in their order."""
    return [part for text in texts.values() for part in re.split(r"\n\s*\n", text) if part.strip()]


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        return ""
