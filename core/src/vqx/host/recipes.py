"""How caches were made, as a file can say it: names and numbers, no path and no code."""

import functools
import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args, get_origin

import mlx.core as mx
import mlx.nn as nn

from vqx.build import Chain, label
from vqx.fingerprint import fingerprint
from vqx.host.layers import attention_of
from vqx.registry import registry
from vqx.state.saved import Made, Recipe

_known: "weakref.WeakValueDictionary[int, nn.Module]" = weakref.WeakValueDictionary()


def know(model: nn.Module) -> None:
    """Remember a model, while it lives: mlx-lm's own function reads caches and says nothing of theirs."""
    _known.pop(id(model), None)
    _known[id(model)] = model


def known() -> Iterator[nn.Module]:
    """The models that caches were made for, the latest first."""
    return reversed([*_known.values()])


def recipe_of(
    model: nn.Module, chain: Chain, own: Mapping[str, Any], engine: Mapping[str, Any], layers: Sequence[int]
) -> Recipe | None:
    """How caches are made that evict these layers; None where an option cannot be written down."""
    files = {name for name in named_files(chain) if own.get(name) is not None}
    options = {name: value for name, value in {**own, **engine}.items() if name not in files}
    try:
        options = json.loads(json.dumps(options, default=_plain))
    except TypeError:
        return None
    attentions = [attention_of(model, number) for number in layers]
    words = {
        "method": label(chain),
        "options": options,
        "files": sorted(files),
        "model": type(model).__module__,
        "layers": [*layers],
    }

    @functools.cache
    def made() -> Made:
        mark = fingerprint(attentions, instead=True)
        if mark is not None:
            mx.eval(mark)
        return Made(json.dumps({**words, "versions": versions(chain)}), mark)

    return made


def versions(chain: Chain) -> dict[str, str]:
    """The releases of the core and of each method's package, without their last number."""
    names = {spec.name for spec in chain}
    each = {one.name: one for one in registry.installed() if one.name in names}
    found = {"vqx": _release(), **{name: one.version for name, one in each.items()}}
    return {name: ".".join(number.split(".")[:2]) for name, number in found.items()}


def _release() -> str:
    """The core's; a checkout that is merely on the path has none."""
    try:
        return version("vqx")
    except PackageNotFoundError:
        return "source"


def named_files(chain: Chain) -> set[str]:
    """Options of these methods that name a file."""
    kinds = {field.name: field.type for spec in chain for field in fields(spec.config)}
    return {name for name, kind in kinds.items() if any(get_origin(k) is os.PathLike for k in get_args(kind))}


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"{value!r} cannot be written down")
    return value.tolist()
