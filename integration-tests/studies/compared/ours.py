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
    budget: int | None
    make: Callable[[Protocol], Candidate | Piece]
    rank: int = 1  # 0: measured before anything else; 2: after everything


PACKAGES = Path(__file__).parents[3] / "packages"
FIRST = settings(["streaming-llm h2o fusion layerwise(fusion) tova"])
HEAD = Setting("protect(h2o)", {"spans": ((0, 64),)})
"""Its first 64 tokens hold the rule of the task instruction."""
SETTINGS = [
    *FIRST,
    *settings(
        [
            "snapkv expected-attention keydiff morphkv keyformer layerwise(h2o) ada(snapkv) critical(snapkv)",
            "pyramidkv chunkkv cam lagkv l2norm qfilters r-kv squeezeattention sliding-window",
        ]
    ),
    HEAD,
    *settings(
        [
            "layerwise(fusion):beyond=expected layerwise(tova) ada(h2o) chunkkv(h2o) tova:heads=each",
            "h2o:normalise=none h2o:decay=0.98,recent=32,normalise=none",
            "h2o:queries=keys h2o:queries=centred-keys h2o:interval=32 h2o:cadence=token",
            "tova:queries=keys tova:queries=centred-keys tova:interval=32 tova:cadence=token",
            "keyformer:queries=keys keyformer:queries=centred-keys keyformer:interval=32",
            "morphkv:queries=keys morphkv:queries=centred-keys morphkv:interval=32",
            "fusion:interval=32 keyformer:queries=keys,recent=0 h2o:bits=8 h2o:bits=4",
            "keyformer:cadence=token morphkv:cadence=token",
            # VeloxQuant-MLX's rule
            "h2o:queries=keys,cadence=token,recent=0,grace=16,decay=0.98,normalise=none",
        ]
    ),
]


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
            make = partial(_cell, engine, setting, budget)
            slow = setting.options.get("cadence") == "token"
            yield Cell(label(setting), budget, make, 0 if setting in FIRST else 1 + slow)


def _cell(engine: Engine, setting: Setting, budget: int, protocol: Protocol) -> Candidate | Piece:
    try:
        return engine.evicting(setting, budget, protocol)
    except (ValueError, vqx.UnknownMethod) as error:
        return {"label": label(setting), "budget": budget, "skipped": str(error)}
