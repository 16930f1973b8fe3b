"""Q-Filters: keep the rows whose keys lie along the main direction of the model's queries.

Godey et al., "Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression", 2025, arXiv 2503.02812.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from vqx import Arrivals, LayerInfo, Method, Scorer
from vqx.fingerprint import fingerprint
from vqx.norms import wide
from vqx.options import at_least, room_beside, warn_without_recent

from vqx_qfilters.filters import EMBEDDED, Filters, load

COMMAND = "vqx qfilters MODEL --out FILE"


@dataclass(frozen=True, kw_only=True)
class QFiltersConfig:
    """Options of Q-Filters; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    recent: int | None = None
    """Newest rows that are never evicted; None: half of the budget (the paper: 0)."""
    filters: str | os.PathLike[str] | None = None
    """The file that ``vqx qfilters`` made for the model. None: those of the embedded model, which come with
    the package."""

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 1)
        if self.recent is None:
            object.__setattr__(self, "recent", self.budget // 2)
        room_beside(self.budget, self.n_sink, self.recent or 0)
        if not isinstance(self.filters, (str, os.PathLike, type(None))):
            raise ValueError(f"filters={self.filters!r}: give the path of a file made by {COMMAND}")


def filtered(direction: mx.array) -> Scorer:
    """-⟨direction, key⟩, taken when a row arrives; ``direction`` is ``[H, D]``."""

    def init(arrivals: Arrivals) -> Mapping[str, Any]:
        _, heads, _, width = arrivals.keys.shape
        if direction.shape != (heads, width):
            raise ValueError(
                f"the filters are for {direction.shape[0]} heads of {direction.shape[1]}, and the layer has"
                f" {heads} of {width}: make filters for this model ({COMMAND})"
            )
        return {"along": (wide(arrivals.keys) * direction[:, None]).sum(axis=-1)}

    return Scorer(score=lambda held: -held.stats["along"], init=init)


def build(config: QFiltersConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer.

    Raises:
        ValueError: no filters for this model, or those of another.
    """
    warn_without_recent("qfilters", config.recent or 0)
    found = _fitting(config.filters, layers)
    return [
        Method(filtered(direction), config.budget, config.n_sink, config.recent or 0)
        for direction in found.directions.astype(mx.float32)
    ]


def _fitting(path: str | os.PathLike[str] | None, layers: Sequence[LayerInfo]) -> Filters:
    """The filters at ``path``, or those of the embedded model, if they were made for these layers."""
    found = load(EMBEDDED if path is None else Path(path))
    own = fingerprint([layer.attention for layer in layers])
    wrong = ""
    if found.directions.shape[0] != len(layers):
        wrong = f"they are for {found.directions.shape[0]} layers, and the model has {len(layers)}"
    elif not found.made_for(own):
        wrong = "they were made with other weights"
    if not wrong:
        return found
    if path is None:
        raise ValueError(
            f"there are no Q-Filters for this model: make them with {COMMAND}, and give filters=FILE"
            " (those of the embedded model come with the package)"
        )
    raise ValueError(f"filters={str(path)!r} do not fit the model: {wrong}; make its own with {COMMAND}")
