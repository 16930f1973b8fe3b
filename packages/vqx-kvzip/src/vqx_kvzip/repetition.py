"""The second pass: the model repeats its context part by part, and each row's greatest attention is kept.

A layer is an immutable value, so a repetition is undone by putting the layer back that was there before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
from vqx import WHOLE, EvictingCache
from vqx.options import at_least
from vqx.state.layer import Layer
from vqx.state.settling import settle

from vqx_kvzip.method import REPEATED, score

FIRST = "\n\nRepeat the previous context exactly."
LATER = "\n\nRepeat the part of the previous context exactly, starting with"
LEAD = 8
"""Tokens before a part that the request to repeat it names."""


def compress(
    model: Any,
    tokenizer: Any,
    caches: Sequence[Any],
    tokens: Sequence[int] | mx.array,
    *,
    prefix: int = 0,
    chunk: int = 2048,
) -> None:
    """Read a context into caches of ``kvzip``, let the model repeat it, and cut to the budget.

    Then generate with the caches and whatever follows the context. The repetition leaves no row, position
    or statistic behind; while it runs, the context's rows are held twice.

    Args:
        model: the model that the caches were made for.
        tokenizer: its tokenizer.
        caches: of ``vqx.make_cache(model, "kvzip", …)``: empty, or with the context read in one forward.
        tokens: the context, ``[T]``, or ``[B, T]`` for a batch.
        prefix: first tokens that are not repeated, and stay as long as there are others (a system prompt).
        chunk: context tokens that are repeated at once.

    Raises:
        ValueError: caches of another method or with other rows, a model with caches that cannot be put back,
            token cadence, a prefix that leaves nothing to repeat.
    """
    at_least("chunk", chunk, 1)
    at_least("prefix", prefix, 0)
    context = tokens if isinstance(tokens, mx.array) else mx.array([*tokens])
    context = context[None] if context.ndim == 1 else context
    length = context.shape[1]
    if length <= prefix:
        raise ValueError(f"prefix={prefix} leaves nothing to repeat of a context of {length} tokens")
    for cache in caches:
        _check(cache, length)
    suffix = _encode(tokenizer, _suffix(tokenizer))
    plans = [cache.plan for cache in caches]
    try:
        for cache, plan in zip(caches, plans, strict=True):
            cache.plan = plan._replace(method=plan.method._replace(budget=WHOLE))
        for start in range(caches[0].tokens_seen, length, chunk):
            model(context[:, start : start + chunk], cache=caches)
            mx.eval([cache.state for cache in caches])
        for start in range(prefix, length, chunk):
            end = min(start + chunk, length)
            asked = _encode(tokenizer, FIRST if start == prefix else LATER)
            lead = context[:, max(start - LEAD, prefix) : start]
            parts = [_rows(asked, context), lead, _rows(suffix, context), context[:, start:end]]
            _repeat(model, caches, mx.concatenate(parts, axis=1), start, end)
    finally:
        for cache, plan in zip(caches, plans, strict=True):
            cache.plan = plan
    for cache in caches:
        cache.layer = _cut(cache)
    mx.eval([cache.state for cache in caches])


def _check(cache: Any, length: int) -> None:
    if not isinstance(cache, EvictingCache):
        raise ValueError(
            f"{type(cache).__name__}: kvzip reads the context twice, and this cache cannot forget the second"
            " time; use another method with this model"
        )
    if cache.allotment is not None or cache.plan.options.cadence == "token":
        raise ValueError("kvzip cuts a context at once: it takes no cadence='token', and no shared budgets")
    if (cache.tokens_seen, cache.size()) not in ((0, 0), (length, length)):
        raise ValueError(
            f"layer {cache.number}: the cache holds {cache.size()} rows of {cache.tokens_seen} tokens, and"
            f" the context has {length}; give fresh caches"
        )
    if cache.plan.method.scorer.score is not score:
        raise ValueError(
            "the rows of these caches are not ranked by kvzip alone; make them with"
            " vqx.make_cache(model, 'kvzip', …)"
        )


def _repeat(model: Any, caches: Sequence[EvictingCache], prompt: mx.array, start: int, end: int) -> None:
    """One forward whose queries score the rows ``start`` to ``end - 1``; nothing else of it stays."""
    layers, plans = [_held(cache) for cache in caches], [cache.plan for cache in caches]
    try:
        for cache, plan in zip(caches, plans, strict=True):
            watching = plan.method.scorer._replace(observe=_greatest(start, end, plan.method.n_sink))
            cache.plan = plan._replace(method=plan.method._replace(scorer=watching))
        model(prompt, cache=caches)
        columns = [_held(cache).rows.columns["attention"] for cache in caches]
        mx.eval(columns)
    finally:
        for cache, layer, plan in zip(caches, layers, plans, strict=True):
            cache.layer, cache.plan, cache.unseen = layer, plan, ""
    for cache, layer, column in zip(caches, layers, columns, strict=True):
        scored = {**layer.rows.columns, "attention": column[..., : layer.size]}
        cache.layer = layer._replace(rows=layer.rows._replace(columns=scored))


def _greatest(start: int, end: int, n_sink: int) -> Callable[[Mapping[str, Any], Any], Mapping[str, Any]]:
    """Sets the scores of rows ``start`` to ``end - 1``: over the repeating queries and the query group, the
    greatest weight of a softmax over these rows, the sinks before them and the repetition itself."""

    def observe(stats: Mapping[str, Any], block: Any) -> Mapping[str, Any]:
        if isinstance(block.mask, mx.array):
            raise ValueError("kvzip: this model masks rows by itself, which a repetition cannot follow")
        n, length, sinks = block.position.shape[2], block.length, min(n_sink, start)
        rows = mx.concatenate([mx.arange(sinks), mx.arange(start, end), mx.arange(n - length, n)])
        part = block._replace(keys=block.keys[:, :, rows], position=block.position[:, :, rows])
        greatest = part.fused(group="max", queries="max")[..., sinks : sinks + end - start]
        old = stats["attention"]
        return {**stats, "attention": mx.concatenate([old[..., :start], greatest, old[..., end:]], axis=2)}

    return observe


def _cut(cache: EvictingCache) -> Layer:
    """The layer at its budget, its rows known to be scored."""
    plan, layer = cache.plan, _held(cache)
    layer = layer._replace(
        notes={**layer.notes, REPEATED: mx.ones(layer.rows.keys.shape[0], mx.bool_)}, last=2
    )
    # cut now, also where a prompt is otherwise cut at its end: it has ended
    plan = plan._replace(options=replace(plan.options, prompt="chunks"))
    return settle(plan, layer, room=2)[0]


def _held(cache: EvictingCache) -> Layer:
    if cache.layer is None:
        raise ValueError(f"layer {cache.number}: the model did not fill this cache")
    return cache.layer


def _rows(ids: Sequence[int], context: mx.array) -> mx.array:
    """The same tokens for every sequence, ``[B, len(ids)]``."""
    return mx.broadcast_to(mx.array([*ids], context.dtype), (context.shape[0], len(ids)))


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _suffix(tokenizer: Any) -> str:
    """What a chat template writes between a question and its answer; a new line without one."""
    if getattr(tokenizer, "chat_template", None) is None:
        return "\n"
    mark = "###########"
    asked = [{"role": "user", "content": mark}]
    written: str = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    return written.partition(mark)[2]
