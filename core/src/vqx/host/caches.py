"""Evicting caches for a model of mlx-lm: built fresh for each call, attached to a model, detached again."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import mlx.nn as nn

from vqx.build import Chain, chain_of, methods_for, settled, split_options
from vqx.host.distribution import all_layers, group_of, share_of_layers
from vqx.host.layers import attention_of, layer_of, plain_layers
from vqx.host.layers import own_caches as own_caches
from vqx.host.recipes import know, recipe_of
from vqx.host.residuals import watch_residuals
from vqx.host.reversing import reversible
from vqx.host.rotaries import rotaries
from vqx.host.trial import check_budgets, check_lanes, hidden_queries, packings_for, unbatched
from vqx.host.watching import expect, watch_arithmetic, watch_attention
from vqx.options import Options, Queries, one_of
from vqx.registry import UnknownMethod
from vqx.spec import LayerInfo
from vqx.state.allotment import Allotment
from vqx.state.cache import EvictingCache
from vqx.state.packing import Packing
from vqx.state.positions import Rotary
from vqx.state.processes import Processes
from vqx.state.turn import Turn

_BEFORE = "_make_cache_before_vqx"

Question: TypeAlias = Literal["later", "end"] | None
"""When a question about the text comes: not at all, after it was read, or as the prompt's end."""

BEST: Mapping[Question, tuple[str, Mapping[str, Any]]] = {
    None: ("h2o", {}),
    "later": ("fusion", {}),
    "end": ("tova", {"prompt": "whole"}),
}
"""Method and engine options where none are named: the best in docs/comparison.md."""


def make_cache(
    model: nn.Module, method: str | None = None, *, question: Question = None, **options: Any
) -> list[Any]:
    """Caches for one sequence or batch: pass them as ``prompt_cache`` to mlx-lm.

    Layers that hold plain key-value caches get evicting ones; sliding-window and state-space layers stay
    as the model made them.

    Args:
        model: a model of mlx-lm.
        method: the name of an installed method (``vqx.names()``), or wrappers around one,
            ``"layerwise(fusion)"``. None: the best measured for the question.
        question: None for text that goes on (``h2o``); ``later`` where facts are asked for after the text
            was read (``fusion``); ``end`` for prompts that end in their question (``tova``): nothing is
            evicted before it was read (``prompt="whole"``), so memory is bounded from the first generated
            token on.
        options: ``budget``, the most rows per layer between forwards, one number or one per layer; the
            method's other options; and the engine's (``vqx.Options``).

    Returns:
        One cache per cache of the model, shared with nobody.

    Raises:
        ValueError: an unknown method or option, a budget that leaves no room, a model without key-value
            caches, ``queries="model"``, ``positions="compact"`` or budgets that differ where the model does
            not allow them.
    """
    return cache_factory(model, method, question=question, **options)()


def attach(model: nn.Module, method: str | None = None, *, question: Question = None, **options: Any) -> None:
    """Let every later generation, server or batch call on ``model`` use evicting caches.

    Options as for :func:`make_cache`, checked now; each call gets fresh caches. Attaching again replaces
    what was attached.
    """
    factory = cache_factory(model, method, question=question, **options)
    if not hasattr(model, _BEFORE):
        object.__setattr__(model, _BEFORE, model.__dict__.get("make_cache"))
    object.__setattr__(model, "make_cache", factory)


def detach(model: nn.Module) -> None:
    """Give the model back the caches it made before; nothing happens where nothing is attached."""
    if not hasattr(model, _BEFORE):
        return
    before = model.__dict__.pop(_BEFORE)
    del model.__dict__["make_cache"]
    if before is not None:
        object.__setattr__(model, "make_cache", before)


def cache_factory(
    model: nn.Module, method: str | None = None, *, question: Question = None, **options: Any
) -> Callable[[], list[Any]]:
    """Check method and options against the model once; the result makes fresh caches at every call."""
    one_of("question", question, tuple(BEST))
    best, engine = BEST[question]
    chain = _best(best) if method is None else chain_of(method)
    own, given = split_options(chain, options)
    own = settled(chain, own)
    engine = {**engine, **given}
    evicting = plain_layers(model)
    if not evicting:
        raise ValueError(
            f"{type(model).__module__}: this model makes no plain key-value cache, so there is nothing to"
            " evict from"
        )
    run = Options(**engine)

    packings: dict[int, Packing] = {}
    written_out = False  # attention, which then asks whose it is
    groups = [group_of(attention_of(model, number)) for number in evicting]
    first, count = share_of_layers(model, evicting)

    def factory(queries: list[Queries]) -> Callable[[], list[Any]]:
        layers = [
            LayerInfo(first + n, q, attention_of(model, n), 0 if group is None else group.rank())
            for n, q, group in zip(evicting, queries, groups, strict=True)
        ]
        # of a model that is split by layers the others count too: budgets may differ from layer to layer
        others = [layers[0]._replace(number=number) for number in range(count)]
        others[first : first + len(layers)] = layers
        methods = methods_for(chain, own, others)[first : first + len(layers)]
        watch_attention(model)
        share = methods[0].share
        if share is not None:
            blocks = {n: (layer_of(model, n), attention_of(model, n)) for n in evicting}
            watch_residuals(model, own_caches(model), blocks)
        turning: list[Rotary | None] = [None] * len(evicting)
        compact = run.positions == "compact"
        if compact or any(method.scorer.rotary for method in methods):
            turning = [*rotaries(model, evicting, compact=compact)]
        recipe = recipe_of(model, chain, own, engine, evicting)
        kinds = {source: Options(**{**engine, "queries": source}) for source in queries}
        each = [kinds[source] for source in queries]  # one for those alike, which is what they ask first
        gathered = all_layers(first, count) if count > len(evicting) else None
        together = None if share is None else Allotment(share, evicting, first, gathered)

        def fresh() -> list[Any]:
            caches = own_caches(model)
            turn = Turn(whole=len(caches) == len(evicting))
            parts = zip(evicting, methods, each, turning, groups, strict=True)
            for number, method, options, rotary, group in parts:
                caches[number] = EvictingCache(
                    method,
                    options,
                    rotary=rotary,
                    number=number,
                    updated=expect if written_out else None,
                    allotment=together,
                    recipe=recipe,
                    packing=packings.get(number),
                    across=None if group is None else Processes(group),
                )
                caches[number].turn, caches[number].apart = turn, apart
                turn.join(caches[number])
            return caches

        @functools.cache
        def apart() -> str:
            return unbatched(model, fresh)

        return fresh

    fresh = factory([run.queries or "model"] * len(evicting))
    hidden = hidden_queries(model, fresh)
    if hidden:  # attention that is written out is seen otherwise, at a price that others need not pay
        watch_arithmetic(model)
        written_out = True
        hidden = hidden_queries(model, fresh)
    if hidden:
        _say_hidden(model, hidden, whole=len(hidden) == len(evicting), asked=run.queries is not None)
        fresh = factory(["centred-keys" if number in hidden else "model" for number in evicting])
    check_budgets(model, fresh)
    check_lanes(model, fresh)
    if run.bits:
        packings.update(packings_for(model, fresh, run.bits, run.group_size))
        fresh()
    know(model)
    return reversible(model, fresh, run.undo) if run.undo else fresh


def _best(name: str) -> Chain:
    """The method taken where none is named."""
    try:
        return chain_of(name)
    except UnknownMethod as error:
        raise UnknownMethod(
            f"where no method is named vqx takes {name!r}, and it is not installed: pip install vqx-{name},"
            " or name another (vqx.names() lists those installed)"
        ) from error


def _say_hidden(model: nn.Module, hidden: dict[int, str], *, whole: bool, asked: bool) -> None:
    """Refuse, or warn, that the queries of some layers cannot be used."""
    why = f"{type(model).__module__} {' and '.join(dict.fromkeys(hidden.values()))}"
    if not whole:
        why += f" in {len(hidden)} of its layers (the first is number {min(hidden)})"
    if asked:
        raise ValueError(
            f"queries='model': {why}, so its queries cannot be matched with rows; use queries='centred-keys'"
        )
    warnings.warn(
        f"{why}: centred keys stand in for its queries, which costs quality"
        " (say queries='centred-keys' to silence this)",
        stacklevel=4,
    )
