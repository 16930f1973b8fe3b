"""One forward as mlx-lm runs it, traced instead of evaluated, and the arrays that its caches hold."""

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from vqx import kernels
from vqx.host.memory import peak, traced
from vqx.host.pace import under_way
from vqx.state.allotment import Change
from vqx.state.attention import MOST
from vqx.state.turn import BEGUN


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles, which would look again and again through graphs that have none."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@contextmanager
def unbegun() -> Iterator[list[mx.array]]:
    """Without a forward that begins before it is written down: the keys up to which it would have begun."""
    begun: list[mx.array] = []
    before = BEGUN.set(begun)
    try:
        yield begun
    finally:
        BEGUN.reset(before)


@contextmanager
def tiles(most: int) -> Iterator[None]:
    """Of the attention that scores a prompt's queries the last tiles alone."""
    before = MOST.set(most)
    try:
        yield
    finally:
        MOST.reset(before)


class Forward:
    """One forward as mlx-lm runs it; afterwards the caches hold arrays that nothing has filled."""

    def __init__(
        self, model: nn.Module, weights: Sequence[tuple[str, mx.array]], caches: list[Any], tokens: mx.array
    ) -> None:
        self.model, self.weights, self.caches = model, weights, caches
        self.given = [*(weight for _, weight in weights), tokens, *held(caches)]

    def peak(self) -> int:
        least = 6 if kernels.target() == "reference" else 4  # operations of a tile, as ``Block`` has them

        def run(*arrays: mx.array) -> list[mx.array]:
            results = self._run(*arrays)
            return [*begun, *results]

        try:
            with unbegun() as begun, tiles(under_way() // least):
                graph = traced(run, self.given)
        finally:
            self.model.update(tree_unflatten([*self.weights]))
            change(self.caches, blank)
        return peak(graph, held=len(self.weights), begun=len(begun))

    def pretend(self) -> None:
        with unbegun(), tiles(1):
            self.model(self.given[len(self.weights)], cache=self.caches)
        change(self.caches, blank)

    def _run(self, *arrays: mx.array) -> list[mx.array]:
        given = iter(arrays)
        self.model.update(tree_unflatten([(name, next(given)) for name, _ in self.weights]))
        tokens = next(given)
        change(self.caches, lambda array: next(given) if array.size > 1 else array)
        logits = self.model(tokens, cache=self.caches)
        state: Any = tree_flatten([cache.state for cache in self.caches])
        results = [leaf for _, leaf in state if isinstance(leaf, mx.array)]
        if tokens.shape[1] > 1:
            return results
        chances = logits[:, -1] - mx.logsumexp(logits[:, -1], axis=-1, keepdims=True)
        return [mx.argmax(chances, axis=-1), chances, *results]


def held(caches: list[Any]) -> list[mx.array]:
    """The arrays that caches hold; those that the host reads, single numbers among them, are left out."""
    found: list[mx.array] = []

    def see(array: mx.array) -> mx.array:
        found.extend([array] if array.size > 1 else [])
        return array

    change(caches, see)
    return found


def blank(array: mx.array) -> mx.array:
    return mx.zeros(array.shape, array.dtype)


def change(tree: Any, by: Callable[[mx.array], mx.array], known: dict[int, Any] | None = None) -> Any:
    """The tree with its arrays changed: in objects (caches) in place, in tuples, lists and mappings anew.

    What stands in two places is one thing afterwards too. What layers read to share their rows out is known
    before a forward, and only made ``blank`` after it. A module of the model's is left as it is.

    Args:
        known: what became of all that was met so far, by ``id``, and what it was, which keeps the number its.
    """
    known = {} if known is None else known
    if id(tree) in known:
        return known[id(tree)][0]
    kind: Any = type(tree)
    if isinstance(tree, mx.array):
        changed: Any = by(tree)
    elif isinstance(tree, nn.Module) or (isinstance(tree, Change) and by is not blank):
        return tree
    elif isinstance(tree, (list, tuple)):
        parts = [change(part, by, known) for part in tree]
        changed = kind(*parts) if hasattr(tree, "_fields") else kind(parts)
    elif isinstance(tree, dict):
        changed = {name: change(part, by, known) for name, part in tree.items()}
    elif _holds_arrays(kind):
        known[id(tree)] = tree, tree
        for name in _names(tree):
            object.__setattr__(tree, name, change(getattr(tree, name), by, known))
        return tree
    else:
        return tree
    known[id(tree)] = changed, tree
    return changed


@functools.cache
def _holds_arrays(kind: Any) -> bool:
    """Whether such an object may hold arrays of a cache."""
    named = f"{kind.__module__}.".startswith(("vqx.", "mlx_lm.models.cache."))
    return named and (kind.__dictoffset__ != 0 or hasattr(kind, "__slots__"))


def _names(tree: Any) -> list[str]:
    """Of what an object holds."""
    slots = [name for name in getattr(type(tree), "__slots__", ()) if hasattr(tree, name)]
    return [*getattr(tree, "__dict__", ()), *slots]
