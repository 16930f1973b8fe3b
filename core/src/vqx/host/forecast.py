"""What fits: the memory that a model and its caches will take, found without running the model.

Forwards are traced as mlx-lm would run them, prompt in chunks and token by token, and MLX's evaluation of
each is walked through (:mod:`vqx.host.memory`): so every model, method and option is counted by what it does.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from vqx.host.caches import Question, cache_factory, own_caches
from vqx.host.forwards import Forward, held, uncollected
from vqx.host.shapes import config_of, shaped
from vqx.options import at_least
from vqx.settings import settings
from vqx.spec import Setting
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
    method: str | Setting | None = None,
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
        method: as of ``vqx.make_cache``, with its ``question`` and ``options``; options that are called as
            something here stand behind its name, as on a command line: ``h2o:prompt=whole``. ``full``:
            mlx-lm's own caches, which hold everything.
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
    if isinstance(method, str):
        (method,) = settings([method])
    name, options = (None, options) if method is None else (method.method, {**method.options, **options})
    budget = options.pop("budget", budget)
    for what, count in (("prompt", prompt), ("tokens", tokens), ("sequences", sequences), ("chunk", chunk)):
        at_least(what, count, 1)
    if options.get("cadence") == "token":
        raise ValueError("cadence='token' reads a prompt on the host, which no plan can follow; use 'block'")
    if isinstance(model, str):
        model = shaped(config_of(model), dtype=dtype, weight_bits=weight_bits)
    elif dtype is not None or weight_bits is not None:
        raise ValueError("dtype and weight_bits are those of the model given: give its name to change them")
    found: nn.Module = model

    def caches_of(rows: int | None) -> list[Any]:
        if name == "full":
            return own_caches(found)
        return cache_factory(found, name, question=question, budget=rows, **options)()

    weights: Any = tree_flatten(found.parameters())
    reading = _Reading(found, weights, caches_of, prompt, tokens, sequences, chunk, {})
    with uncollected():
        if memory is None or name == "full":
            if budget is None and name != "full":
                raise ValueError("say how many rows to keep (budget), or into what they have to fit (memory)")
            return reading.told(budget)[0]
        if budget is not None:
            raise ValueError(f"budget={budget} and memory={memory}: give one, the other follows")
        return _fitting(reading, memory)


class _Reading(NamedTuple):
    """A prompt and the answer to it, forward by forward."""

    model: nn.Module
    weights: Sequence[tuple[str, mx.array]]
    caches_of: Callable[[int | None], list[Any]]  # fresh ones, which keep so many rows
    prompt: int
    tokens: int
    sequences: int
    chunk: int
    known: dict[int | None, dict[Any, int]]  # peaks by budget and by what a forward finds

    def told(self, budget: int | None) -> tuple[Forecast, int]:
        """The forecast, and the number of the forward that holds most."""
        caches = self.caches_of(budget)
        peaks = self.peaks(budget, caches)
        chunks = len(self._chunks())
        taken = sum(weight.nbytes for _, weight in self.weights)
        cache = sum(array.nbytes for array in held(caches))
        prompt, decode = max(peaks[:chunks], default=taken), max(peaks[chunks:])
        return Forecast(budget, taken, cache, prompt, decode), peaks.index(max(peaks))

    def peak(self, budget: int, heavy: Sequence[int], memory: int) -> int:
        """The greatest peak of these forwards, or that of the first of them that is above ``memory``."""
        found = 0
        for number in heavy:
            found = max(found, *self.peaks(budget, self.caches_of(budget), number))
            if found > memory:
                break
        return found

    def peaks(self, budget: int | None, caches: list[Any], only: int | None = None) -> list[int]:
        """The peak of each forward, in order; 0 for those that hold less or were not asked for.

        A peak is the same where the arrays held are. After the one that is asked for nothing is read.
        """
        known = self.known.setdefault(budget, {})
        found: list[int] = []
        for cache in caches:
            if isinstance(cache, EvictingCache):
                cache.recipe = None  # a file would say how it was made, which costs a look at the weights
        for number, (length, counts) in enumerate(self._forwards(caches)):
            if only is not None and number > only:
                break
            grows = [_grows(cache, length) for cache in caches]
            shapes = (length, *grows, *((*array.shape, array.dtype) for array in held(caches)))
            forward = Forward(self.model, self.weights, caches, mx.zeros((self.sequences, length), mx.int32))
            if shapes in known or not counts or (only is not None and number < only):
                forward.pretend()
            else:
                known[shapes] = forward.peak()
            found.append(known.get(shapes, 0) if counts and only in (None, number) else 0)
        return found

    def _chunks(self) -> list[int]:
        return [min(self.chunk, self.prompt - 1 - first) for first in range(0, self.prompt - 1, self.chunk)]

    def _forwards(self, caches: list[Any]) -> list[tuple[int, bool]]:
        """How many tokens each forward reads, and whether its peak counts.

        Between the first tokens and the last ones nothing holds more than those that come after it.
        """
        few = 3 + max(
            [cache.plan.options.interval for cache in caches if isinstance(cache, EvictingCache)] or [0]
        )
        first, last = min(few, self.tokens), max(0, min(few, self.tokens - few))
        between = [(self.tokens - first - last, False)] if self.tokens > first + last else []
        ones = [(1, True)]
        return [*((length, True) for length in self._chunks()), *ones * first, *between, *ones * last]


def _fitting(reading: _Reading, memory: int) -> Forecast:
    """The forecast of the greatest budget whose peak fits.

    It is sought by the forwards alone that were the worst so far; then all are looked at.
    """
    most = reading.prompt + reading.tokens
    step = max(16, most // 64)
    budget = -(-most // step) * step
    least = _least(reading, step, budget)
    heavy: list[int] = []
    told, worst = reading.told(budget)
    while told.peak > memory and budget > least:
        heavy = [worst, *heavy]
        budget = _sought(reading, memory, heavy, least, (budget, told.peak), step)
        told, worst = reading.told(budget)
    if told.peak > memory:
        raise ValueError(
            f"no budget fits into {memory / 1e9:.2f} GB: with {least} rows the peak is"
            f" {told.peak / 1e9:.2f} GB, of which {told.weights / 1e9:.2f} are weights; read the prompt in"
            " shorter chunks, read fewer sequences together, or quantise the weights"
        )
    return told


def _sought(
    reading: _Reading, memory: int, heavy: Sequence[int], least: int, above: tuple[int, int], step: int
) -> int:
    """The greatest budget at which the forwards ``heavy`` fit; ``least`` where they do at none.

    It is looked for where a line between two others meets the memory; where the line is far from the truth,
    half of what is left is tried next.

    Args:
        above: a budget at which they do not fit, and their peak.
    """
    fits, (over, peak), share = least, above, None
    under = reading.peak(fits, heavy, memory)
    while over - fits > step and under <= memory:
        left = over - fits
        share = share or (memory - under) / (peak - under)
        budget = min(max(fits + int(share * left) // step * step, fits + step), over - step)
        found = reading.peak(budget, heavy, memory)
        if found > memory:
            over, peak = budget, found
        else:
            fits, under = budget, found
        share = 0.5 if over - fits > left / 2 else None
    return fits


def _least(reading: _Reading, step: int, most: int) -> int:
    """The first budget that leaves room beside the method's guards, doubled from ``step`` on."""
    while True:
        try:
            reading.caches_of(step)
        except ValueError:
            if 2 * step > most:
                raise
            step *= 2
        else:
            return step


def _grows(cache: Any, length: int) -> bool:
    """Whether a cache has no room for so many rows more."""
    keys = getattr(cache, "keys", None)
    return keys is None or cache.size() + length > keys.shape[2]
