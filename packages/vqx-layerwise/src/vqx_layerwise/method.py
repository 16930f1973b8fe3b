"""Layerwise: rows shared out among the layers by what each loses without them.

vqx's own. Some layers of a model lose nothing when they see only the latest few dozen rows, others carry all
that is recalled from afar. A profile, measured once for a model, says which (``vqx layerwise``).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vqx import LayerInfo, Method, accumulated
from vqx.fingerprint import fingerprint, same_model
from vqx.options import not_negative, room_beside

from vqx_layerwise.profile import EMBEDDED, load, shared_out

COMMAND = "vqx layerwise MODEL --out FILE"


@dataclass(frozen=True, kw_only=True)
class LayerwiseConfig:
    """Options of Layerwise; ``budget`` rows stay in each layer on average.

    Raises:
        ValueError: a budget that leaves no room beside 4 sinks, a floor outside 0 to 1.
    """

    budget: int
    floor: float = 0.25
    """Part of the budget that every layer keeps; 1 shares nothing out."""
    profile: str | os.PathLike[str] | None = None
    """The file that ``vqx layerwise`` made for the model. None: that of the embedded model."""

    def __post_init__(self) -> None:
        room_beside(self.budget, 4, 0)
        not_negative("floor", self.floor)
        if self.floor > 1:
            raise ValueError(f"floor={self.floor!r}: give the part that every layer keeps, from 0 to 1")
        if not isinstance(self.profile, (str, os.PathLike, type(None))):
            raise ValueError(f"profile={self.profile!r}: give the path of a file made by {COMMAND}")


def share(config: LayerwiseConfig, layers: Sequence[LayerInfo]) -> list[int]:
    """The budget of each layer; their mean is the budget given.

    Raises:
        ValueError: no profile for this model, or that of another.
    """
    if config.floor == 1:
        return [config.budget] * len(layers)
    found = load(EMBEDDED if config.profile is None else Path(config.profile))
    own = fingerprint([layer.attention for layer in layers])
    if len(found.need) == len(layers) and same_model(found.fingerprint, own):
        return shared_out(found.need, config.budget, config.floor)
    if config.profile is None:
        raise ValueError(
            f"there is no profile of this model: make one with {COMMAND}, and give profile=FILE"
            " (that of the embedded model comes with the package)"
        )
    raise ValueError(
        f"profile={str(config.profile)!r} was made for another model ({len(found.need)} layers); make its own"
        f" with {COMMAND}"
    )


def build(config: LayerwiseConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer, by mean attention (h2o with ``normalise="seen"`` and 4 sinks)."""
    methods = []
    for layer, rows in zip(layers, share(config, layers), strict=True):
        room_beside(rows, 4, rows // 2)
        attended = accumulated(itself=layer.queries == "model", per_sighting=True)
        methods.append(Method(attended, rows, n_sink=4, recent=rows // 2))
    return methods
