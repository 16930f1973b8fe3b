"""Which methods are tested, with what options, and how widely.

Every method is tested, mostly at its defaults on the embedded model, and as its plugin's ``example`` says on
small ones. What an engine option does depends on what the engine finds in a method, so one method of each
nature goes through all of them, and every other method through the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
import pytest
from vqx import EvictingCache, LayerInfo, MethodSpec, Options
from vqx.build import chain_of, methods_for
from vqx.state.positions import rotary_of
from vqx.testing import Shape, attending


class Nature(NamedTuple):
    """What the engine finds in a method."""

    accumulates: bool
    looks_back: bool
    sums_up: bool
    merges: bool
    shares_heads: bool
    shares_layers: bool

    def allows(self, engine: Options) -> bool:
        """Whether the engine runs such a method with these options."""
        if self.shares_heads:
            return (engine.queries or "model", engine.cadence, engine.positions) == (
                "model",
                "block",
                "absolute",
            )
        return engine.cadence == "block" or not (self.sums_up or self.merges)


def _distinct(specs: list[MethodSpec]) -> list[str]:
    """Their names; of several names for one method its package's."""
    named: dict[Any, str] = {}
    for spec in specs:
        both = spec.config, spec.build
        if both not in named or spec.name.replace("-", "_") in spec.build.__module__:
            named[both] = spec.name
    return list(named.values())


def fitted(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the method's example; without guards that the method lacks."""
    return _known(method, {**(vqx.load(method).example or {}), **options})


def _known(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for owner in (vqx.load(method).config, Options) for field in fields(owner)}
    return {name: one for name, one in options.items() if name in known}


def _nature(method: str) -> Nature:
    layers = [LayerInfo(number, "model", attending()) for number in range(3)]
    scorer, *_, floor, share, merge = methods_for(chain_of(method), fitted(method, {"budget": 24}), layers)[0]
    return Nature(
        accumulates=scorer.observe is not None,
        looks_back=scorer.window > 0,
        sums_up=scorer.note is not None,
        merges=merge is not None,
        shares_heads=floor is not None,
        shares_layers=share is not None,
    )


SPECS = [vqx.load(name) for name in vqx.names()]
METHODS = _distinct([spec for spec in SPECS if spec.example is not None])
PREPARED = _distinct([spec for spec in SPECS if spec.example is None])
"""Methods that run only on what was made for them: their packages test them."""

NATURES = {method: _nature(method) for method in METHODS}
REPRESENTATIVES = {nature: method for method, nature in reversed(NATURES.items())}
"""The first method of each nature."""

method = pytest.mark.parametrize("method", METHODS)
representative = pytest.mark.parametrize("method", REPRESENTATIVES.values())


def through(engines: Mapping[str, Options], *, merging: bool = True) -> pytest.MarkDecorator:
    """Parametrises ``method`` and ``engine``; ``merging=False`` for tests that read rows off their values."""
    pairs = []
    for method, nature in NATURES.items():
        if nature.merges and not merging:
            continue
        allowed = [name for name, engine in engines.items() if nature.allows(engine)]
        every = REPRESENTATIVES[nature] == method
        pairs += [
            pytest.param(method, engines[name], id=f"{method}-{name}")
            for name in (allowed if every else allowed[:1])
        ]
    return pytest.mark.parametrize(("method", "engine"), pairs)


def caches_of(model: Any, method: str, engine: Options | None = None, **options: Any) -> list[EvictingCache]:
    """A model's caches, at the method's example."""
    chosen = {} if engine is None else {field.name: getattr(engine, field.name) for field in fields(engine)}
    return vqx.make_cache(model, method, **fitted(method, {**chosen, **options}))


def default_caches(model: Any, method: str, budget: int) -> list[EvictingCache]:
    """A model's caches at the method's defaults, with four sinks: without any, a window loses the thread."""
    return vqx.make_cache(model, method, **_known(method, {"budget": budget, "n_sink": 4}))


def cache_of(method: str, engine: Options, shape: Shape, **options: Any) -> EvictingCache:
    """The cache of one layer with heads of this shape, at the method's example."""
    layer = LayerInfo(0, engine.queries or "model", attending(shape))
    (built,) = methods_for(chain_of(method), fitted(method, options), [layer])
    rotary = rotary_of(nn.RoPE(shape.width), shape.width) if built.scorer.rotary else None
    return EvictingCache(built, engine, rotary=rotary)


def read_once(reader: Any, tokens: mx.array, caches: Mapping[str, list[Any]]) -> None:
    """One forward for all; layers that share their rows look at the forward, so it has to be their own."""
    alone = [name for name in caches if name in NATURES and NATURES[name].shares_layers]
    reader.read_together(tokens, [each for name, each in caches.items() if name not in alone])
    for name in alone:
        mx.eval(reader.model.model(tokens, cache=caches[name]), [cache.state for cache in caches[name]])


def check_full(caches: Sequence[EvictingCache], budget: int) -> None:
    """Rows went, each layer holds what its method says, and all together what was asked for."""
    budgets = [cache.plan.method.budget for cache in caches if cache.plan.method.budget != vqx.WHOLE]
    assert sum(budgets) == budget * len(budgets) > 0
    for cache in caches:
        assert cache.tokens_kept == min(cache.plan.method.budget, cache.tokens_seen)
    assert any(cache.tokens_kept < cache.tokens_seen for cache in caches)
