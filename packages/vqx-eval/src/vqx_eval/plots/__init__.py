"""Pictures of a run: quality against budget, by depth, by position, and which tokens were kept."""

from collections.abc import Sequence
from pathlib import Path

from vqx_eval.plots.budgets import budgets
from vqx_eval.plots.depths import depths
from vqx_eval.plots.maps import maps
from vqx_eval.plots.positions import positions
from vqx_eval.plots.style import looks
from vqx_eval.store import Piece
from vqx_eval.summary import Table


def draw(tables: Sequence[Table], pieces: Sequence[Piece], folder: Path) -> list[Path]:
    """Every picture that the run has figures for, as PNG files."""
    look = looks(cell.label for table in tables for cell in table.cells)
    figures = [
        *budgets(tables, look),
        *positions(tables, pieces, look),
        *depths(tables, pieces),
        *maps(pieces),
    ]
    files = []
    for name, figure in figures:
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=150)
    return files
