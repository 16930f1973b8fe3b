"""The hidden state before and after each layer's attention, for layers that share their rows by it.

A layer's class and its attention's class are hooked where they are called. That attention's output is added
to the layer's input as it is, and to nothing else, is seen once, on the model itself.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from vqx.state.batch import EvictingBatch
from vqx.state.cache import EvictingCache

_now = threading.local()


def watch_residuals(
    model: nn.Module, caches: list[Any], blocks: Mapping[int, tuple[nn.Module | None, nn.Module | None]]
) -> None:
    """Show caches that share their rows what attention adds to the hidden state.

    Args:
        caches: fresh ones, for a forward of two tokens.
        blocks: for the number of each cache that evicts its layer and that layer's attention module.

    Raises:
        ValueError: a layer that adds attention's output in another way than ``x + attention(...)``.
    """
    noted: list[tuple[nn.Module, mx.array, Any]] = []
    with _noting({type(part) for _, part in model.named_modules()}, noted):
        mx.eval(model(mx.ones((1, 2), mx.int32), cache=caches))  # what other processes wait for as well
    for number, (block, attention) in blocks.items():
        if block is None or attention is None or not _adds(block, attention, noted):
            raise ValueError(
                f"{type(model).__module__}: layer {number} does not just add its attention's output to the"
                " hidden state, so how much attention changes cannot be told; let its layers have one budget"
            )
        _hook(type(block), _entered)
        _hook(type(attention), _left)


def _hook(kind: type, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    if not getattr(kind.__call__, "shows_residuals_to_vqx", False):
        call = wrapped(kind.__call__)
        call.shows_residuals_to_vqx = True  # type: ignore[attr-defined]
        kind.__call__ = call  # type: ignore[method-assign]


def _entered(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def block(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        outer, _now.hidden = getattr(_now, "hidden", None), args[0] if args else None
        try:
            return call(self, *args, **kwargs)
        finally:
            _now.hidden = outer

    return block


def _left(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def attention(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        answer = call(self, *args, **kwargs)
        before = getattr(_now, "hidden", None)
        for cache in (*args, *kwargs.values()):
            if isinstance(cache, (EvictingCache, EvictingBatch)) and before is not None:
                cache.see(before, _first(answer))
        return answer

    return attention


def _first(answer: Any) -> mx.array:
    found: mx.array = answer[0] if isinstance(answer, tuple) else answer
    return found


def _adds(block: nn.Module, attention: nn.Module, noted: list[tuple[nn.Module, mx.array, Any]]) -> bool:
    """Whether a part of the layer was given just the layer's input plus its attention's output."""
    parts = {id(part) for _, part in block.named_modules()}
    before = next((given for part, given, _ in noted if part is block), None)
    change = next((_first(answer) for part, _, answer in noted if part is attention), None)
    if before is None or change is None or before.shape != change.shape:
        return False
    after = before + change
    inside = [given for part, given, _ in noted if id(part) in parts and part is not block]
    return any(bool(mx.array_equal(given, after).item()) for given in inside if given.shape == after.shape)


@contextmanager
def _noting(kinds: set[type], noted: list[tuple[nn.Module, mx.array, Any]]) -> Iterator[None]:
    """Note each call of modules of these classes, with the first argument and the answer."""

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            answer = call(self, *args, **kwargs)
            if args and isinstance(args[0], mx.array):
                noted.append((self, args[0], answer))
            return answer

        return noted_call

    before = {kind: vars(kind)["__call__"] for kind in kinds if "__call__" in vars(kind)}
    try:
        for kind, call in before.items():
            kind.__call__ = noting(call)  # type: ignore[method-assign]
        yield
    finally:
        for kind, call in before.items():
            kind.__call__ = call  # type: ignore[method-assign]
