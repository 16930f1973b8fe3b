"""The settings of ours that are compared, the most wanted first."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import vqx
from vqx import Setting
from vqx.settings import label
from vqx_eval import Candidate, Engine, settings
from vqx_eval.samples import Protocol
from vqx_eval.store import Piece


class Cell(NamedTuple):
    """One setting at one budget: for a protocol a candidate, or a piece that says why there is none."""

    label: str
    make: Callable[[Protocol], Candidate | Piece]


PACKAGES = Path(__file__).parents[3] / "packages"
SETTINGS = settings(
    [
        "streaming-llm fusion layerwise(fusion) layerwise(fusion):beyond=expected h2o h2o:normalise=none",
        "tova snapkv keydiff expected-attention morphkv keyformer fusion:beyond=expected layerwise",
        "h2o:decay=0.98,recent=32,normalise=none tova:heads=each l2norm lagkv pyramidkv chunkkv cam r-kv",
        "qfilters squeezeattention ada(h2o) critical sliding-window morphkv:over=old,group=max,n_sink=0",
        "h2o:queries=keys h2o:queries=centred-keys tova:queries=keys snapkv:queries=keys",
        "keyformer:queries=keys,recent=0 h2o:interval=32 fusion:interval=32 h2o:cadence=token",
        # VeloxQuant-MLX's rule
        "h2o:queries=keys,cadence=token,recent=0,grace=16,decay=0.98,normalise=none",
    ]
)


def register_sources() -> None:
    """Register every method of this checkout whose package is found but not installed."""
    installed = vqx.names()
    for file in sorted(PACKAGES.glob("*/src/vqx_*/plugin.py")):
        name = file.parent.name
        if name.removeprefix("vqx_").replace("_", "-") not in installed:
            plugin = import_module(f"{name}.plugin")
            if hasattr(plugin, "vqx_methods"):
                vqx.register(plugin)


def cells(engine: Engine, budgets: Sequence[int]) -> Iterator[Cell]:
    for setting in SETTINGS:
        for budget in budgets:
            yield Cell(label(setting), partial(_cell, engine, setting, budget))


def _cell(engine: Engine, setting: Setting, budget: int, protocol: Protocol) -> Candidate | Piece:
    try:
        return engine.evicting(setting, budget, protocol)
    except (ValueError, vqx.UnknownMethod) as error:
        return {"label": label(setting), "budget": budget, "skipped": str(error)}
