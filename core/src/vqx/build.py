"""From a method's name and options to one plan per layer."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any

from vqx.options import Options
from vqx.registry import registry
from vqx.scorers import Method
from vqx.spec import LayerInfo, MethodSpec


def split_options(spec: MethodSpec, given: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part options into the method's own and the engine's.

    Raises:
        ValueError: an option that neither knows, with the nearest right one.
    """
    own = {field.name for field in fields(spec.config)}
    engine = {field.name for field in fields(Options)}
    unknown = sorted(set(given) - own - engine)
    if unknown:
        near = difflib.get_close_matches(unknown[0], [*own, *engine], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{spec.name} has no option {unknown[0]!r}{hint} (its options: {', '.join(sorted(own))};"
            f" every method's: {', '.join(sorted(engine))})"
        )
    return (
        {name: value for name, value in given.items() if name in own},
        {name: value for name, value in given.items() if name in engine},
    )


def methods_for(spec: MethodSpec, own: Mapping[str, Any], layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer; ``budget`` may be one number or one per layer.

    Raises:
        ValueError: what the method's config refuses, or a list of budgets of another length.
    """
    budget = own.get("budget")
    if budget is None:
        raise ValueError(f"{spec.name}: say how many rows to keep per layer, for example budget=1024")
    if isinstance(budget, str) or not isinstance(budget, Iterable):
        return list(spec.build(spec.config(**{**own, "budget": _plain(budget)}), layers))
    budgets = [_plain(rows) for rows in budget]
    if len(budgets) != len(layers):
        raise ValueError(f"budget lists {len(budgets)} numbers, and the model has {len(layers)} layers")
    each = [spec.build(spec.config(**{**own, "budget": rows}), layers) for rows in budgets]
    return [methods[number] for number, methods in enumerate(each)]


def _plain(rows: object) -> object:
    """NumPy's integers as Python's; a config refuses what is no integer."""
    return int(rows) if isinstance(rows, Integral) and not isinstance(rows, bool) else rows


def spec_of(method: str) -> MethodSpec:
    """The installed method of that name (``vqx.load``)."""
    return registry.load(method)
