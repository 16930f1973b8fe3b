"""From a method's name and options to one method per layer; wrappers compose by name.

``"protect(ada(snapkv))"`` is built from the inside out: each wrapper is handed the methods inside it.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any

from vqx.options import Options
from vqx.registry import registry
from vqx.scorers import Method
from vqx.spec import LayerInfo, MethodSpec

Chain = tuple[MethodSpec, ...]
"""A method's specs, the outermost wrapper first."""


def chain_of(name: str) -> Chain:
    """The installed methods that a name composes (``vqx.load`` for each).

    Raises:
        ValueError: brackets that do not match, a method around another that wraps nothing, one twice.
        UnknownMethod, PluginError: as ``vqx.load``.
    """
    parts = name.replace(" ", "").rstrip(")").split("(")
    if not re.fullmatch(r"[^()]+", "".join(parts)) or name.count("(") != name.count(")"):
        raise ValueError(f"method {name!r} is not understood; write 'h2o', or 'outer(inner)' for a wrapper")
    chain = tuple(registry.load(part) for part in parts)
    for spec in chain[:-1]:
        if spec.wrap is None and spec.share is None:
            raise ValueError(f"{spec.name} wraps no other method, so {name!r} cannot be built")
        if chain.count(spec) > 1:
            raise ValueError(f"{name!r} names {spec.name} twice, with the same options: once will do")
    return chain


def label(chain: Chain) -> str:
    """The name that composes them."""
    return "(".join(spec.name for spec in chain) + ")" * (len(chain) - 1)


def split_options(chain: Chain, given: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part options into the methods' own and the engine's.

    Raises:
        ValueError: an option that neither knows, with the nearest right one.
    """
    *wrappers, base = chain
    own = _options(base).union(*(_options(spec, around=True) for spec in wrappers))
    engine = {field.name for field in fields(Options)}
    unknown = sorted(set(given) - own - engine)
    if unknown:
        near = difflib.get_close_matches(unknown[0], [*own, *engine], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{label(chain)} has no option {unknown[0]!r}{hint} (its options: {', '.join(sorted(own))};"
            f" every method's: {', '.join(sorted(engine))})"
        )
    return (
        {name: value for name, value in given.items() if name in own},
        {name: value for name, value in given.items() if name in engine},
    )


def settled(chain: Chain, own: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the windows that nobody gave, where the budget is below 128 rows.

    They are a sixteenth of it then, one at least and no more than usual: a query of all heads weighs as much
    as one row or two.
    """
    budget: Any = own.get("budget")
    rows = [*budget] if isinstance(budget, Iterable) and not isinstance(budget, str) else [budget]
    if not all(isinstance(each, Integral) and 0 < int(each) < 128 for each in rows):
        return {**own}
    most = max(1, min(map(int, rows), default=1) // 16)
    for place, spec in enumerate(chain):
        usual: dict[str, Any] = {field.name: field.default for field in fields(spec.config)}
        for name in {*spec.windows} & _options(spec, around=place + 1 < len(chain)) - {*own}:
            own = {**own, name: min(usual[name], most)}
    return {**own}


def methods_for(chain: Chain, own: Mapping[str, Any], layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer; ``budget`` may be one number or one per layer.

    An option goes to every method of the chain that has it.

    Raises:
        ValueError: what a method's config refuses, a list of budgets of another length, or one for a
            method that sets them itself.
    """
    budget = own.get("budget")
    if budget is None:
        raise ValueError(f"{label(chain)}: say how many rows to keep per layer, for example budget=1024")
    if isinstance(budget, str) or not isinstance(budget, Iterable):
        return _shared(chain, {**own, "budget": _plain(budget)}, layers)
    budgets = [_plain(rows) for rows in budget]
    if len(budgets) != len(layers):
        raise ValueError(f"budget lists {len(budgets)} numbers, and the model has {len(layers)} layers")
    each = [_built(chain, {**own, "budget": rows}, layers) for rows in budgets]
    chosen = [methods[number] for number, methods in enumerate(each)]
    if [method.budget for method in chosen] != budgets or any(method.share for method in chosen):
        raise ValueError(f"{label(chain)} sets the budgets of the layers itself: give budget as one number")
    return chosen


def _shared(chain: Chain, own: Mapping[str, Any], layers: Sequence[LayerInfo]) -> list[Method]:
    """The methods; where layers share their rows, with the way to build them anew at another budget."""
    methods = _built(chain, own, layers)
    share = methods[0].share if methods else None
    if share is None:
        return methods

    @functools.cache
    def at(index: int, rows: int) -> Method:
        return _built(chain, {**own, "budget": rows}, layers)[index]._replace(share=None)

    try:
        at(0, share.least)
    except ValueError as error:
        raise ValueError(
            f"{label(chain)} may leave a layer {share.least} of budget={own['budget']} rows: {error}"
        ) from error
    return [method._replace(share=share._replace(at=at)) for method in methods]


def _built(chain: Chain, own: Mapping[str, Any], layers: Sequence[LayerInfo]) -> list[Method]:
    spec, *inner = chain
    config = _config(spec, own)
    if not inner:
        return list(spec.build(config, layers))
    if spec.share is not None:
        own = {**own, "budget": list(spec.share(config, layers))}
    methods = methods_for(tuple(inner), own, layers)
    return list(spec.wrap(config, layers, methods)) if spec.wrap is not None else methods


def _config(spec: MethodSpec, own: Mapping[str, Any]) -> Any:
    known = _options(spec)
    return spec.config(**{name: value for name, value in own.items() if name in known})


def _options(spec: MethodSpec, *, around: bool = False) -> set[str]:
    """The options that a method has, alone or around another."""
    return {field.name for field in fields(spec.config)} - set(spec.alone if around else ())


def _plain(rows: object) -> object:
    """NumPy's integers as Python's; a config refuses what is no integer."""
    return int(rows) if isinstance(rows, Integral) and not isinstance(rows, bool) else rows
