"""How a plugin describes a method, and the settings at which two methods are equal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vqx.options import Queries
from vqx.scorers import Method

PROTOCOL = 1
"""Raised only when old plugins would break."""


class LayerInfo(NamedTuple):
    """What a method may know of a layer when it is built."""

    number: int
    queries: Queries
    """Where this layer's queries come from: never None."""
    attention: Any = None
    """The layer's attention module (``mlx.nn.Module``), for methods that read its weights; None without
    a model."""
    rank: int = 0
    """Which part of the layer's heads this process holds: 0 the first, where they are split over several."""


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """One eviction method of a plugin."""

    name: str
    """The entry point's name."""
    summary: str
    """One line."""
    paper: str
    """arXiv id or venue."""
    config: type[Any]
    """Frozen keyword-only dataclass with unprefixed fields that checks itself; it has ``budget``."""
    build: Callable[[Any, Sequence[LayerInfo]], Sequence[Method]]
    """(config, layers) -> one method per layer."""
    wrap: Callable[[Any, Sequence[LayerInfo], Sequence[Method]], Sequence[Method]] | None = None
    """(config, layers, one method per layer) -> the same, wrapped: what ``name(other)`` asks for."""
    share: Callable[[Any, Sequence[LayerInfo]], Sequence[int]] | None = None
    """(config, layers) -> budgets of the layers, for which the method inside is then built: a wrapper that
    only shares rows out, in the place of ``wrap``."""
    alone: Sequence[str] = ()
    """Options that mean nothing around another method, and are refused there unless that method has them."""
    windows: Sequence[str] = ()
    """Options that count the latest queries a score looks at, which are held and whose rows are safe: where
    nobody gives them, a small budget has fewer (``vqx.build.settled``)."""
    adapted: Mapping[str, object] = field(default_factory=dict)
    """Defaults of the adapted system, for the façade (``KVCacheConfig``)."""
    example: Mapping[str, object] | None = field(default_factory=dict)
    """Options at which it runs on any small model with 16 rows, 4 of them sinks: tests use them. None: only
    on what was prepared for it, such as a file made for the model."""
    protocol: int = 1
    """The core's protocol this plugin was written for. A plugin that says nothing speaks the first: this
    default stays when :data:`PROTOCOL` is raised, so that old plugins are told from new ones."""


class Setting(NamedTuple):
    """A method with some of its options."""

    method: str
    options: Mapping[str, object]


class Collapse(NamedTuple):
    """Two settings that keep the same rows, with the same statistics and the same text.

    The integration tests run whatever is declared, over budgets, guards and engine options.
    """

    this: Setting
    that: Setting
    engine: Mapping[str, object] = {}
    """Engine options at which the equality holds; empty: at all of them."""
    reason: str = ""
