"""Finished pieces of work, one JSON line each: a run that is started again goes on where it stopped."""

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Piece: TypeAlias = dict[str, Any]
"""One batch under one candidate: key, task, protocol, length, label, budget, seconds, samples."""


class Store(NamedTuple):
    """Pieces by key; with a file, every new one is appended to it at once."""

    pieces: dict[str, Piece]
    file: Path | None = None

    def add(self, piece: Piece) -> None:
        self.pieces[piece["key"]] = piece
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(piece) + "\n")


def open_store(folder: Path | None) -> Store:
    """What a folder holds so far; nothing is kept on disk without one."""
    if folder is None:
        return Store({})
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pieces.jsonl"
    if not file.exists():
        return Store({}, file)
    kept = file.read_text("utf-8")
    whole, _, torn = kept.rpartition("\n")
    if torn:  # a run that was killed while writing: the half line is dropped, its work is done again
        file.write_text(whole + "\n" if whole else "", encoding="utf-8")
    pieces = [json.loads(line) for line in whole.splitlines()]
    return Store({piece["key"]: piece for piece in pieces}, file)
