"""What fits: the memory that a model and its caches will take, found without running the model.

Forwards are traced as mlx-lm would run them, prompt in chunks and token by token, and MLX's evaluation of
each is walked through (:mod:`vqx.host.memory`): so every model, method and option is counted by what it does.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from vqx.host.caches import Question, cache_factory, own_caches
from vqx.host.memory import peak, traced, under_way
from vqx.host.shapes import config_of, shaped
from vqx.options import at_least
from vqx.state.attention import MOST
from vqx.state.cache import EvictingCache


class Forecast(NamedTuple):
    """Bytes, on the device that MLX uses here."""

    budget: int | None
    """Rows that each layer keeps; None: all."""
    weights: int
    cache: int
    """Every array of the caches after the last token, with room for growth and bookkeeping."""
    prompt: int
    """The peak while the prompt is read, weights included."""
    decode: int
    """The peak while tokens are generated, weights included."""

    @property
    def peak(self) -> int:
        return max(self.prompt, self.decode)


def plan(
    model: nn.Module | str,
    method: str | None = None,
    *,
    budget: int | None = None,
    memory: int | None = None,
    prompt: int = 4096,
    tokens: int = 256,
    sequences: int = 1,
    chunk: int = 2048,
    dtype: str | None = None,
    weight_bits: int | None = None,
    question: Question = None,
    **options: Any,
) -> Forecast:
    """The memory that a prompt and an answer take, nothing being evaluated.

    Args:
        model: a model of mlx-lm; or ``embedded``, the name of a shape (``vqx.host.shapes.SHAPES``), a folder
            with a ``config.json``, or such a file.
        method: as of ``vqx.make_cache``, with its ``question`` and ``options``; ``full``: mlx-lm's own
            caches, which hold everything.
        budget: rows that each layer keeps.
        memory: bytes that the peak may reach: the greatest budget that fits is sought (to 1/64 of the text).
        prompt: tokens of the prompt.
        tokens: tokens generated.
        sequences: prompts of that length that are read together.
        chunk: tokens of a prompt that are read at once (mlx-lm's ``prefill_step_size``).
        dtype: the weights'; None: as the model's configuration says.
        weight_bits: bits of a quantised weight; None: as the model's configuration says.

    Raises:
        ValueError: as ``vqx.make_cache``; neither budget nor memory; memory in which no budget fits;
            ``cadence="token"``, by which prompts are decided on the host.
    """
    for name, count in (("prompt", prompt), ("tokens", tokens), ("sequences", sequences), ("chunk", chunk)):
        at_least(name, count, 1)
    if options.get("cadence") == "token":
        raise ValueError("cadence='token' reads a prompt on the host, which no plan can follow; use 'block'")
    if isinstance(model, str):
        model = shaped(config_of(model), dtype=dtype, weight_bits=weight_bits)
    elif dtype is not None or weight_bits is not None:
        raise ValueError("dtype and weight_bits are those of the model given: give its name to change them")
    found: nn.Module = model

    def at(rows: int | None) -> Forecast:
        if method == "full":
            return _forecast(found, own_caches(found), None, prompt, tokens, sequences, chunk)
        fresh = cache_factory(found, method, question=question, budget=rows, **options)
        return _forecast(found, fresh(), rows, prompt, tokens, sequences, chunk)

    if memory is None or method == "full":
        if budget is None and method != "full":
            raise ValueError("say how many rows to keep (budget), or into what they have to fit (memory)")
        return at(budget)
    if budget is not None:
        raise ValueError(f"budget={budget} and memory={memory}: give one, the other follows")
    return _fitting(at, memory, prompt + tokens)


def _fitting(at: Callable[[int | None], Forecast], memory: int, most: int) -> Forecast:
    """The forecast of the greatest budget whose peak fits, sought where a line between two others meets it.

    Where the line is far from the truth, half of what is left is tried next.
    """
    step = max(16, most // 64)
    most = -(-most // step) * step
    least, below = _least(at, step, most)
    if below.peak > memory:
        raise ValueError(
            f"no budget fits into {memory / 1e9:.2f} GB: with {least} rows the peak is"
            f" {below.peak / 1e9:.2f} GB, of which {below.weights / 1e9:.2f} are weights; read the prompt in"
            " shorter chunks, read fewer sequences together, or quantise the weights"
        )
    fits, over, above, part = least, most, at(most), 0.5
    if above.peak <= memory:
        return above
    while over - fits > step:
        left, line = over - fits, (memory - below.peak) / (above.peak - below.peak)
        budget = fits + int((line if part <= 0.5 else 0.5) * left) // step * step
        budget = min(max(budget, fits + step), over - step)
        told = at(budget)
        if told.peak > memory:
            over, above = budget, told
        else:
            fits, below = budget, told
        part = (over - fits) / left
    return below


def _least(at: Callable[[int | None], Forecast], step: int, most: int) -> tuple[int, Forecast]:
    """The first budget that leaves room beside the method's guards, doubled from ``step`` on."""
    while True:
        try:
            return step, at(step)
        except ValueError:
            if 2 * step > most:
                raise
            step *= 2


def _forecast(
    model: nn.Module,
    caches: list[Any],
    budget: int | None,
    prompt: int,
    tokens: int,
    sequences: int,
    chunk: int,
) -> Forecast:
    weights: Any = tree_flatten(model.parameters())
    taken = sum(weight.nbytes for _, weight in weights)
    known: dict[Any, int] = {}
    for cache in caches:
        if isinstance(cache, EvictingCache):
            cache.recipe = None  # a file would say how it was made, which costs a look at the weights

    def forward(length: int) -> _Forward:
        return _Forward(model, weights, caches, mx.zeros((sequences, length), mx.int32))

    def read(length: int) -> int:
        """One forward, and its peak, which is the same where the arrays held are."""
        grows = [_grows(cache, length) for cache in caches]
        shapes = (length, *grows, *((*array.shape, array.dtype) for array in _held(caches)))
        if shapes in known:
            forward(length).pretend()
        else:
            known[shapes] = forward(length).peak()
        return known[shapes]

    chunks = [min(chunk, prompt - 1 - first) for first in range(0, prompt - 1, chunk)]
    reading = max([read(length) for length in chunks], default=taken)
    few = 3 + max(
        [cache.plan.options.interval for cache in caches if isinstance(cache, EvictingCache)] or [0]
    )
    answering = max(read(1) for _ in range(min(few, tokens)))
    if tokens > 2 * few:  # what is between holds less than what comes after it
        forward(tokens - 2 * few).pretend()
    answering = max([answering, *(read(1) for _ in range(min(few, tokens - few)))])
    return Forecast(budget, taken, sum(array.nbytes for array in _held(caches)), reading, answering)


def _grows(cache: Any, length: int) -> bool:
    """Whether a cache has no room for so many rows more."""
    keys = getattr(cache, "keys", None)
    return keys is None or cache.size() + length > keys.shape[2]


class _Forward:
    """One forward as mlx-lm runs it; afterwards the caches hold arrays that nothing has filled."""

    def __init__(
        self, model: nn.Module, weights: Sequence[tuple[str, mx.array]], caches: list[Any], tokens: mx.array
    ) -> None:
        self.model, self.weights, self.caches = model, weights, caches
        self.given = [*(weight for _, weight in weights), tokens, *_held(caches)]

    def peak(self) -> int:
        few = MOST.set(under_way() // 4)  # a tile of attention is four operations at least
        try:
            graph = traced(self._run, self.given)
        finally:
            MOST.reset(few)
            self.model.update(tree_unflatten([*self.weights]))
            _change(self.caches, _blank)
        return peak(graph, held=len(self.weights))

    def pretend(self) -> None:
        self.model(self.given[len(self.weights)], cache=self.caches)
        _change(self.caches, _blank)

    def _run(self, *arrays: mx.array) -> list[mx.array]:
        given = iter(arrays)
        self.model.update(tree_unflatten([(name, next(given)) for name, _ in self.weights]))
        tokens = next(given)
        _change(self.caches, lambda array: next(given) if array.ndim else array)
        logits = self.model(tokens, cache=self.caches)
        state: Any = tree_flatten([cache.state for cache in self.caches])
        results = [leaf for _, leaf in state if isinstance(leaf, mx.array)]
        if tokens.shape[1] > 1:
            return results
        chances = logits[:, -1] - mx.logsumexp(logits[:, -1], axis=-1, keepdims=True)
        return [mx.argmax(chances, axis=-1), chances, *results]


_CACHES = ("vqx.", "mlx_lm.models.cache")
"""Where objects come from that hold arrays of a cache."""


def _held(caches: list[Any]) -> list[mx.array]:
    """The arrays that caches hold; single numbers, which the host may read, are left out."""
    found: list[mx.array] = []

    def see(array: mx.array) -> mx.array:
        found.extend([array] if array.ndim else [])
        return array

    _change(caches, see)
    return found


def _blank(array: mx.array) -> mx.array:
    return mx.zeros(array.shape, array.dtype)


def _change(tree: Any, change: Callable[[mx.array], mx.array]) -> Any:
    """The tree with its arrays changed: in objects (caches) in place, in tuples, lists and mappings anew."""
    if isinstance(tree, mx.array):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        parts = [_change(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, dict):
        return {name: _change(part, change) for name, part in tree.items()}
    if type(tree).__module__.startswith(_CACHES) and hasattr(tree, "__dict__") and not isinstance(tree, type):
        for name, part in vars(tree).items():
            object.__setattr__(tree, name, _change(part, change))
    return tree
