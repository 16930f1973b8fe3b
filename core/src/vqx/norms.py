"""Norms and directions of rows in float32, for MLX's arrays and NumPy's alike."""

from typing import Any

from vqx.ranking import library


def wide(rows: Any) -> Any:
    """Rows in float32, where they lie."""
    return rows.astype(library(rows).float32)


def norm(rows: Any) -> Any:
    """The Euclidean norm of rows ``[..., D]``: ``[...]`` float32."""
    rows = wide(rows)
    return (rows * rows).sum(axis=-1) ** 0.5


def unit(rows: Any) -> Any:
    """Rows ``[..., D]`` of norm 1 in float32; a row of zeros stays."""
    length = norm(rows)[..., None]
    return wide(rows) / (length + (length == 0))
