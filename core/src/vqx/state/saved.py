"""A cache as words and arrays: what a file holds of it, and what must be so before one is believed.

The words are JSON, and name a method as ``vqx.names`` does. Nothing that they say is imported or run.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np

from vqx.state.attention import Known
from vqx.state.layer import Layer, Places, Plan, Seen
from vqx.state.rows import Rows

FORMAT = 1
"""Raised when files of before can no longer be read."""
HIGHEST = 2**31 - 1


class Made(NamedTuple):
    """How a list of caches was made, so that it can be made again."""

    words: str  # JSON: method, options, versions, model
    fingerprint: mx.array | None  # of the model's weights


Recipe: TypeAlias = Callable[[], Made]
"""Looked at when a cache is first evaluated or saved: it costs a look at the model's weights."""


class Saved(NamedTuple):
    """What is known of one cache that was saved, before any of it is believed."""

    made: Mapping[str, Any]
    facts: Mapping[str, Any]
    arrays: Mapping[str, mx.array]


def written(made: Made, facts: Mapping[str, Any], arrays: Mapping[str, mx.array]) -> list[Any]:
    """The state of one cache: words, which name the arrays behind them.

    Asked for after each chunk of a prompt, so what stays the same is not written down again.
    """
    if made.fingerprint is not None:
        arrays = {**arrays, "fingerprint": made.fingerprint}
    told, names = json.dumps(facts), _list(tuple(arrays))
    words = f'{{"vqx": {FORMAT}, "made": {made.words}, "facts": {told}, "arrays": {names}}}'
    return [f"{_digest(words)} {words}", *arrays.values()]


@functools.lru_cache(maxsize=256)
def _list(names: tuple[str, ...]) -> str:
    return json.dumps(names)


def read(state: Any) -> Saved:
    """The reverse of ``written``.

    Raises:
        ValueError: words that were changed, or that another version of the format wrote.
    """
    try:
        text, *arrays = state
        digest, words = text.split(" ", 1)
        told = json.loads(words) if digest == _digest(words) else None
    except (AttributeError, TypeError, ValueError):
        told = None
    if not isinstance(told, dict):
        raise ValueError("this is no cache that vqx saved, or the file was changed: make the cache anew")
    if told.get("vqx") != FORMAT:
        raise ValueError(
            f"the cache was saved in format {told.get('vqx')!r}, and this vqx reads {FORMAT}: make it anew"
        )
    names: Any = told.get("arrays")
    _want(isinstance(names, list) and len(names) == len(arrays), "arrays are missing")
    _want(all(isinstance(array, mx.array) for array in arrays), "numbers are not arrays")
    _want(all(isinstance(told.get(part), dict) for part in ("made", "facts")), "words are missing")
    return Saved(told["made"], told["facts"], dict(zip(names, arrays, strict=True)))


def parts(layer: Layer) -> tuple[dict[str, Any], dict[str, mx.array]]:
    """A layer's facts, and its arrays by name."""
    rows, seen = layer.rows, layer.seen
    facts: dict[str, Any] = {name: getattr(layer, name) for name in _COUNTS} | {"evicted": layer.evicted}
    arrays = {"keys": rows.keys, "values": rows.values, "position": rows.position}
    arrays |= {f"column {name}": column for name, column in rows.columns.items()}
    arrays |= {f"note {name}": note for name, note in layer.notes.items()}
    if seen is not None:
        origin = None if seen.origin is None else seen.origin.tolist()
        facts |= {"origin": origin, "scale": seen.scale, "logits": seen.logits}
        arrays |= {"queries": seen.queries} | ({} if seen.sinks is None else {"sinks": seen.sinks})
        arrays |= {} if seen.known is None else {"mass": seen.known.mass}
    if layer.score is not None:
        arrays["score"] = layer.score
    if layer.key_sum is not None:
        arrays["key sum"] = layer.key_sum
    return facts, arrays


def layer_of(facts: Mapping[str, Any], arrays: Mapping[str, mx.array], plan: Plan, like: Layer) -> Layer:
    """The layer, once it fits the plan and ``like``, a layer that the same plan made of another text.

    Raises:
        ValueError: says what does not fit.
    """
    for name, least in _COUNTS.items():
        count = facts.get(name)
        _want(type(count) is int and least <= count <= HIGHEST, f"{name}={count!r}")
    _want(isinstance(facts.get("evicted"), bool), "evicted is neither true nor false")
    _want({"keys", "values", "position"} <= set(arrays), "rows are missing")
    layer = Layer(
        Rows(arrays["keys"], arrays["values"], arrays["position"], _named("column ", arrays)),
        seen=_seen(facts, arrays, plan),
        score=arrays.get("score"),
        key_sum=arrays.get("key sum"),
        notes=_named("note ", arrays),
        evicted=facts["evicted"],
        **{name: facts[name] for name in _COUNTS},
    )
    _check_rows(layer, like)
    _check_queries(layer, plan, like)
    return layer


def _seen(facts: Mapping[str, Any], arrays: Mapping[str, mx.array], plan: Plan) -> Seen | None:
    if "queries" not in arrays:
        return None
    queries: mx.array = arrays["queries"]
    scale: Any = facts.get("scale")
    _want(isinstance(scale, float) and isinstance(facts.get("logits"), bool), "queries have no scale")
    _want(queries.ndim == 5, f"queries of shape {queries.shape}")
    origin = _places(facts.get("origin"), queries) if plan.compact else None
    known = Known(arrays["mass"]) if "mass" in arrays else None
    return Seen(queries, scale, arrays.get("sinks"), facts["logits"], origin, known)


def _places(told: Any, queries: mx.array) -> Places:
    """What each query was rotated for, ``[B or 1, q]``."""
    batch, *_, count, _ = queries.shape
    right = isinstance(told, list) and len(told) in (1, batch)
    right = right and all(isinstance(each, list) and len(each) == count for each in told)
    _want(right and all(type(at) is int and 0 <= at <= HIGHEST for each in told for at in each), "places")
    return np.array(told, np.int32)


def _check_rows(layer: Layer, like: Layer) -> None:
    rows, heads = layer.rows, like.rows.keys.shape[1]
    _want(layer.heads in (1, heads), f"heads={layer.heads}")
    _want(rows.position.ndim == 3 and rows.position.dtype == mx.int32, "positions are no positions")
    batch, lanes, n = rows.position.shape
    _want(lanes * layer.heads == heads and n % layer.heads == 0, f"rows of {lanes} heads")
    _want(0 < n <= layer.tokens_seen * layer.heads and layer.last <= layer.tokens_seen, f"{n} rows")
    for name, held, usual in (
        ("keys", rows.keys, like.rows.keys),
        ("values", rows.values, like.rows.values),
    ):
        fits = held.ndim == 4 and held.shape[:2] == (batch, lanes) and held.shape[3] == usual.shape[3]
        _want(fits and held.shape[2] >= n, f"{name} of shape {held.shape}")
        _want(held.dtype == usual.dtype, f"{name} of type {held.dtype}, where the model has {usual.dtype}")
    _want(rows.keys.shape[2] == rows.values.shape[2], "keys and values of other lengths")
    kinds = {name: column.dtype for name, column in like.rows.columns.items()}
    kinds |= {"head": mx.int32} if layer.heads > 1 else {}
    _want({name: column.dtype for name, column in rows.columns.items()} == kinds, "statistics")
    _want(all(column.shape == (batch, lanes, n) for column in rows.columns.values()), "statistics")
    right = (rows.position >= 0) & (rows.position < layer.tokens_seen)
    _want(mx.all(right).item(), f"positions beyond {layer.tokens_seen} tokens")
    if layer.heads > 1:
        head = rows.columns["head"]
        _want(mx.all((head >= 0) & (head < heads)).item(), "rows of heads that the layer has not")


def _check_queries(layer: Layer, plan: Plan, like: Layer) -> None:
    scorer, seen, batch = plan.method.scorer, layer.seen, layer.rows.keys.shape[0]
    asked = scorer.window > 0 or (plan.replays(layer) and scorer.reads_queries)
    _want(seen is not None or not asked or layer.score is not None, "queries are missing")
    if layer.score is not None:
        right = seen is None and (scorer.observe is not None or scorer.window == 1)
        _want(right and layer.score.dtype == mx.float32, "scores")
        _, heads, n = layer.rows.position.shape
        _want(layer.score.shape in ((batch, heads, n), (batch, 1, n)), "scores")
    if seen is not None and like.seen is not None:
        shape, usual = seen.queries.shape, like.seen.queries.shape
        _want((shape[0], *shape[1:3]) == (batch, *usual[1:3]), f"queries of shape {shape}")
        width = layer.rows.position.shape[2] if seen.logits else usual[4]
        _want(seen.logits == like.seen.logits and shape[4] == width, f"queries of shape {shape}")
        mass = None if seen.known is None else seen.known.mass
        _want(mass is None or (mass.shape, mass.dtype) == (layer.rows.position.shape, mx.float32), "weights")
        sinks, other = seen.sinks, like.seen.sinks
        _want((sinks is None) == (other is None), "learned sinks")
        _want(sinks is None or other is None or sinks.shape == other.shape, "learned sinks")
    _want((layer.key_sum is None) == (like.key_sum is None), "the sum of the keys")
    if layer.key_sum is not None and like.key_sum is not None:
        _want(layer.key_sum.shape == (batch, *like.key_sum.shape[1:]), "the sum of the keys")
    for name, note in like.notes.items():
        fits = name in layer.notes and layer.notes[name].shape[1:] == note.shape[1:]
        _want(fits, f"the note {name!r}")


def _named(prefix: str, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()


def _want(right: Any, what: str) -> None:
    if not right:
        raise ValueError(f"the saved cache does not fit its model and method ({what}): make it anew")


_COUNTS = {"tokens_seen": 1, "generated": 0, "last": 1, "heads": 1}
