"""What works for one file of mlx-lm, found by running its tiny model."""

import re
import warnings
from collections.abc import Iterable
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache
from tiny_models.build import tiny_model
from tiny_models.oracle import Oracle, record
from vqx.host.layers import plain_layers

LENGTHS = (9, 1, 1, 6, 1, 1, 1, 1)
BUDGET, AMPLE = 6, 64
KINDS = {
    "RotatingKVCache": "sliding-window",
    "ArraysCache": "recurrent",
    "ChunkedKVCache": "chunked",
    "CacheList": "composite",
    "LayerCache": "the model's own",
}
"""What mlx-lm's caches other than plain ones are for."""


class Verdict(NamedTuple):
    """One line of the table; what is not allowed says why."""

    file: str
    rows: str = "-"
    queries: str = "-"
    token: str = "-"
    compact: str = "-"
    budgets: str = "-"
    note: str = ""


@cache
def verdict(file: str) -> Verdict | None:
    """Build, read, evict; None where the file defines no model.

    Raises AssertionError where something is wrong in silence: other logits than the model's own while
    nothing is evicted, scores apart from the oracle's, a budget that is not kept.
    """
    try:
        model = tiny_model(file)
        if model is None:
            return None
        own = read(model, make_prompt_cache(model))
    except (RuntimeError, ValueError) as error:
        return Verdict(file, note=f"does not run here, whatever the caches: {error}")
    rows = _rows(model)
    if rows.startswith("no layer"):
        with pytest.raises(ValueError, match="no plain key-value cache"):
            make(model)
        return Verdict(file, rows)
    caches, said = make(model, budget=AMPLE)
    assert _same(read(model, caches), own), "with room for every row, logits differ from the model's own"
    hidden = any(one.plan.options.queries != "model" for one in evicting(caches))
    assert len(said) == hidden, said
    check_scores(model)
    count, asked = len(evicting(caches)), None if hidden else "model"
    return Verdict(
        file,
        rows,
        f"no: {said[0].split(': ')[0]}" if hidden else "yes",
        _allowed(model, own, cadence="token", queries=asked),
        _allowed(model, own, positions="compact"),
        _allowed(model, own, budget=[BUDGET + number % 2 for number in range(count)]),
    )


def make(model: nn.Module, **options: Any) -> tuple[list[Any], list[str]]:
    """Evicting caches, and the warnings that came with them."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        caches = vqx.make_cache(model, "h2o", **{"n_sink": 1, "recent": 1, "budget": BUDGET, **options})
    return caches, [_reason(one.message) for one in said if one.category is UserWarning]


def evicting(caches: list[Any]) -> list[vqx.EvictingCache]:
    return [cache for cache in caches if isinstance(cache, vqx.EvictingCache)]


def read(model: nn.Module, caches: list[Any], lengths: Iterable[int] = LENGTHS) -> list[mx.array]:
    """Forwards of these lengths over fixed tokens: the logits of each."""
    found = []
    for first, last in pairwise(accumulate(lengths, initial=0)):
        found.append(model(mx.array([[(7 * i + i * i // 5) % 96 for i in range(first, last)]]), cache=caches))
        mx.eval(found[-1], [cache.state for cache in caches])
    return found


def check_scores(model: nn.Module) -> list[Oracle]:
    """Evict by mass and by the latest queries; every score is the oracle's, every layer keeps its budget."""
    caches, _ = make(model)
    oracles = {}
    for one in evicting(caches):
        if one.plan.options.queries == "model":
            oracles[id(one)] = oracle = Oracle(sum(LENGTHS))
            one.plan = one.plan._replace(method=oracle.method(BUDGET))
    with pytest.MonkeyPatch.context() as patch:
        record(model, lambda cache: oracles.get(id(cache)), patch)
        read(model, caches)
    for one in evicting(caches):
        assert one.tokens_kept == BUDGET < one.tokens_seen == sum(LENGTHS)
    for oracle in oracles.values():
        assert oracle.compared >= 5, "no score was compared"
        assert oracle.error < 1e-5, f"a score is apart by {oracle.error}"
    return list(oracles.values())


def _same(some: list[mx.array], others: list[mx.array]) -> bool:
    return all(mx.array_equal(a, b, equal_nan=True).item() for a, b in zip(some, others, strict=True))


def _allowed(model: nn.Module, own: list[mx.array], **options: Any) -> str:
    """ "yes" once it ran as it should, or why it is refused."""
    try:
        caches, _ = make(model, **options)
    except ValueError as error:
        return f"no: {_reason(error)}"
    found = read(model, caches)
    assert all(one.tokens_kept == one.plan.method.budget < one.tokens_seen for one in evicting(caches))
    # the first prompt is longer than any budget, and read before the first row goes
    assert _same(found[:1], own[:1])
    assert not _same(found, own), "nothing was evicted"
    return "yes"


def _rows(model: nn.Module) -> str:
    kinds = [type(cache).__name__ for cache in make_prompt_cache(model)]
    others = " and ".join(sorted({KINDS.get(kind, kind) for kind in kinds if kind != "KVCache"}))
    if "KVCache" not in kinds:
        return f"no layer: {others} caches"
    if len(plain_layers(model)) < kinds.count("KVCache"):
        return "all but the last, whose rows other layers count"
    return f"all but {others} layers" if others else "every layer"


def _reason(message: Any) -> str:
    """A refusal or warning without what was asked, the names of model and layer, and what to do instead."""
    text = re.sub(r"^(positions|queries|budget)[^:]*: ", "", str(message))
    text = re.sub(r"(of )?(layer \d+ of )?mlx_lm\.models\.[\w.-]+ ?", "", text)
    return re.split(r"; | \(|, so (?:its|every)| in \d+ of its layers", text)[0]
