"""How the layers of a model share their rows: a decision that its caches take together, from the prompt.

Attention that hardly changes the hidden state can do with fewer rows; how much it does is measured while
the prompt is read, and read by the host once for each text, before the first cut.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx.options import at_least
from vqx.scorers import Method, Share


class Change(NamedTuple):
    """How much the attention of one layer changed the hidden state, in each sequence so far."""

    total: mx.array | None  # [B] sums of cosines over tokens; None: nothing was seen
    tokens: tuple[int, ...]  # how many of each

    def more(self, total: mx.array, tokens: Sequence[int]) -> "Change":
        """With what later tokens showed, ``[B]`` and as many."""
        total = total if self.total is None else self.total + total
        return Change(total, tuple(a + b for a, b in zip(self.tokens, tokens, strict=True)))

    def taken(self, places: Sequence[int]) -> "Change":
        """Of these sequences alone."""
        total = None if self.total is None else self.total[mx.array([*places])]
        return Change(total, tuple(self.tokens[i] for i in places))

    def beside(self, other: "Change") -> "Change":
        """With other sequences behind."""
        tokens = self.tokens + other.tokens
        if self.total is None and other.total is None:
            return Change(None, tokens)
        totals = [mx.zeros((len(n),)) if total is None else total for total, n in (self, other)]
        return Change(mx.concatenate(totals), tokens)


UNSEEN = Change(None, (0,))
"""Of one sequence without a token."""


def cosines(before: mx.array, change: mx.array) -> mx.array:
    """Of hidden states ``[B, S, hidden]`` and what attention adds to them, ``[B, S]``."""
    x, y = before.astype(mx.float32), (before + change).astype(mx.float32)
    return mx.sum(x * y, axis=-1) * mx.rsqrt(mx.sum(x * x, axis=-1) * mx.sum(y * y, axis=-1))


def changing(number: int, change: Change) -> mx.array:
    """The sums of a layer that read something of every sequence.

    Raises:
        ValueError: of one nothing was seen.
    """
    if change.total is None or 0 in change.tokens:
        raise ValueError(
            f"layer {number}: how much its attention changes was not seen, by which the layers share their"
            " rows; let them have one budget"
        )
    return change.total


class Allotment(NamedTuple):
    """What the layers of these numbers decide together.

    Their caches hold what each saw (``change``), join one ``vqx.state.turn.Turn``, and take what is decided
    (``allot``).
    """

    share: Share
    numbers: Sequence[int]
    first: int = 0
    """The place of the first of them among the layers that share their rows."""
    gathered: Callable[[mx.array, Sequence[Any]], mx.array] | None = None
    """From what was seen of these layers, and their caches, to what was seen of all, where other processes
    have the others; None: they are all here."""

    def method(self, number: int, budget: Any) -> Method:
        """The method of the layer ``number`` with the budget that was decided."""
        at_least("budget", budget, self.share.least)
        return self.share.at(self.first + [*self.numbers].index(number), budget)

    def decide(self, caches: Sequence[Any], sequences: Sequence[int]) -> None:
        """Read what was seen of these sequences, and let every layer take its method.

        A sequence of which not every layer saw the same tokens waits: a forward is under way.

        Args:
            caches: at least those of ``numbers``.

        Raises:
            ValueError: some are missing.
        """
        layers = {cache.number: cache for cache in caches}
        if not layers.keys() >= {*self.numbers}:
            raise ValueError("layers that share their rows decide together: build them with vqx.make_cache")
        seen = [layers[number].change for number in self.numbers]
        counts = {i: {change.tokens[i] for change in seen} for i in sequences}
        complete = [i for i in sequences if len(counts[i]) == 1 and counts[i] != {0}]
        if not complete:
            return
        totals = [change.total for change in seen if change.total is not None]
        means = mx.stack(totals, axis=1) / mx.array([change.tokens for change in seen]).T
        for i in complete:
            every = means[i] if self.gathered is None else self.gathered(means[i], caches)
            budgets = self.share.budgets([float(mean) for mean in np.array(every)])
            for place, number in enumerate(self.numbers, self.first):
                layers[number].allot(i, self.method(number, budgets[place]))
