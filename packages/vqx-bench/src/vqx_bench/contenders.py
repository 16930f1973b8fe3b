"""Who runs: mlx-lm's plain and rotating caches, vqx's methods, and VeloxQuant-MLX's where it is installed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import mlx.nn as nn
from vqx import Setting
from vqx.host.caches import cache_factory, own_caches
from vqx.host.models import rotating_caches
from vqx.settings import label

PLAIN = "KVCache"
ROTATING = "RotatingKVCache"
PEER = "VeloxQuant-MLX"
PEERS = {
    "h2o": "H2OOptions",
    "tova": "TOVAOptions",
    "keyformer": "KeyformerOptions",
    "morphkv": "MorphKVOptions",
}


class Contender(NamedTuple):
    """A name, and fresh caches for a model, one for each of its layers."""

    label: str
    make: Callable[[], list[Any]]
    bounded: bool = True
    patience: float | None = None
    """Seconds that it may take to read a text, or it is left out; None: any."""


def plain(model: nn.Module) -> Contender:
    return Contender(PLAIN, partial(own_caches, model), bounded=False)


def rotating(model: nn.Module, rows: int) -> Contender:
    return Contender(ROTATING, partial(rotating_caches, model, rows, 0))


def evicting(model: nn.Module, setting: Setting, rows: int, engine: Mapping[str, Any]) -> Contender:
    """A method at ``rows`` rows; ``engine`` are options that the setting may override.

    Raises:
        ValueError: what the method or the model refuses.
    """
    options = {**engine, **setting.options}
    make = cache_factory(model, setting.method, budget=rows, **options)
    return Contender(label(Setting(setting.method, options)), make)


def peers(
    model: nn.Module, methods: Sequence[str], rows: int, patience: float, left: Callable[[str], object]
) -> list[Contender]:
    """VeloxQuant-MLX's own caches of the same methods, with its own defaults.

    Most of them take a text token by token in Python: a text of ``patience`` seconds is the longest one.
    ``left`` is told what is not compared, and why.
    """
    try:
        found = f"{PEER} {version('veloxquant-mlx')}"
    except PackageNotFoundError:
        left(f"{PEER}, which is not installed (pip install veloxquant-mlx)")
        return []
    theirs = [name for name in methods if name in PEERS]
    for name in sorted({*methods} - {*theirs}):
        left(f"{PEER}'s {name}: of its caches {', '.join(PEERS)} are compared")
    return [
        Contender(f"{found} {name}", partial(_peer, model, name, rows), patience=patience) for name in theirs
    ]


def _peer(model: nn.Module, method: str, rows: int) -> list[Any]:
    theirs = import_module("veloxquant_mlx")  # by name: it is compared where it is found, and never asked for
    options = import_module("veloxquant_mlx.cache.options")
    base = import_module("veloxquant_mlx.cache.base")
    kind = getattr(options, PEERS[method])
    own = {f"{method}_budget": rows}
    if hasattr(kind, f"{method}_rope_base"):
        own[f"{method}_rope_base"] = model.args.rope_theta
    config = base.KVCacheConfig(method=method, options=kind(**own))
    return list(theirs.KVCacheBuilder.for_model(model, config))
