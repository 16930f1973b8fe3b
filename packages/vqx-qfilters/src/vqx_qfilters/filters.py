"""Filters: one direction for each head, how they are found, and the file they are kept in."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from vqx.fingerprint import same_model

FORMAT = "vqx-qfilters-1"
EMBEDDED = Path(str(files("vqx_qfilters") / "embedded.safetensors"))
"""The filters of the embedded model (SmolLM2-135M-Instruct), made by the command from its own text."""


class Filters(NamedTuple):
    """Directions away from the queries: the smaller a key's product with one, the more it is attended to."""

    directions: mx.array  # [L, H, D] float16
    probe: mx.array | None = None  # [L, PROBED] float32; None: the model has no query projection to probe

    def made_for(self, probe: mx.array | None) -> bool:
        """Whether the model with this probe is the one they were made for; True where neither can tell."""
        return same_model(self.probe, probe)


def directions(queries: Sequence[Sequence[mx.array]]) -> mx.array:
    """Of each layer's queries ``[H, G, S, D]``, text by text, the filters ``[L, H, D]`` float16.

    Each query head's is its principal right singular direction, pointing away from most queries; a key head
    gets the mean over its group.
    """
    return mx.stack([mx.array(_direction(texts)) for texts in zip(*queries, strict=True)]).astype(mx.float16)


def _direction(texts: Sequence[mx.array]) -> npt.NDArray[np.float64]:
    rows = np.concatenate([np.array(text.astype(mx.float32), np.float64) for text in texts], axis=2)
    _, vectors = np.linalg.eigh(rows.swapaxes(-1, -2) @ rows)
    main = vectors[..., -1]  # [H, G, D]
    along = (np.einsum("hgsd,hgd->hgs", rows, main) > 0).mean(axis=-1, keepdims=True)
    found: npt.NDArray[np.float64] = np.where(along > 0.5, -main, main).mean(axis=1)
    return found


def save(filters: Filters, path: Path) -> None:
    """Write filters to a file of safetensors."""
    arrays = {"directions": filters.directions}
    if filters.probe is not None:
        arrays["probe"] = filters.probe
    mx.save_safetensors(str(path), arrays, metadata={"format": FORMAT})


def load(path: Path) -> Filters:
    """Read filters.

    Raises:
        ValueError: no such file, or not one of filters.
    """
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"filters={str(path)!r} cannot be read: {error}") from error
    arrays, metadata = loaded
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"filters={str(path)!r} is of the format {metadata.get('format')!r}, not {FORMAT!r}: make it anew"
            " with vqx qfilters MODEL --out FILE"
        )
    return Filters(arrays["directions"], arrays.get("probe"))
