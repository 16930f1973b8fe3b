"""How the layers of a model share their rows: a decision that its caches take together, from the prompt.

Attention that hardly changes the hidden state can do with fewer rows; how much it does is measured while
the prompt is read, and read by the host once, before the first cut.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx.options import at_least
from vqx.scorers import Method, Share


class _Seen(NamedTuple):
    total: mx.array  # sum of cosines over tokens and sequences
    tokens: int


class Allotment:
    """The decision of one list of caches, for the layers of these numbers.

    Args:
        first: the place of the first of them among the layers that share their rows.
        gathered: from what was seen of these layers to what was seen of all, where other processes have the
            others; None: they are all here.
    """

    def __init__(
        self,
        share: Share,
        numbers: Sequence[int],
        first: int = 0,
        gathered: Callable[[mx.array], mx.array] | None = None,
    ) -> None:
        self.share, self.numbers, self.first, self.gathered = share, [*numbers], first, gathered
        self.chosen: dict[int, Method] = {}
        self._seen: dict[int, _Seen] = {}

    @property
    def complete(self) -> bool:
        """Whether every layer saw the same tokens: between forwards, and while one token is read."""
        tokens = {self._seen[number].tokens if number in self._seen else 0 for number in self.numbers}
        return len(tokens) == 1 and 0 not in tokens

    def see(self, number: int, before: mx.array, change: mx.array) -> None:
        """Hidden states ``[B, S, hidden]`` before a layer's attention, and what it adds to them.

        Single tokens after the first forward are not looked at, so that decoding costs nothing.
        """
        batch, length, _ = before.shape
        if self.chosen or (length == 1 and number in self._seen):
            return
        x, y = before.astype(mx.float32), (before + change).astype(mx.float32)
        cosine = mx.sum(x * y, axis=-1) * mx.rsqrt(mx.sum(x * x, axis=-1) * mx.sum(y * y, axis=-1))
        old = self._seen.get(number, _Seen(mx.array(0.0), 0))
        self._seen[number] = _Seen(old.total + cosine.sum(), old.tokens + batch * length)

    def shown(self, number: int) -> Any:
        """What was seen of ``number``, for ``show``."""
        return self._seen.get(number)

    def show(self, number: int, seen: Any) -> None:
        """Know of ``number`` what ``shown`` told, and nothing more."""
        self._seen.pop(number, None)
        if seen is not None:
            self._seen[number] = seen

    def carried(self, number: int) -> list[mx.array]:
        """The array that waits to be read, for ``number``'s state."""
        return [self._seen[number].total] if number in self._seen else []

    def told(self, number: int) -> tuple[int | None, int]:
        """For a file: ``number``'s budget once it is decided, and the tokens that ``carried`` sums up."""
        budget = self.chosen[number].budget if number in self.chosen else None
        return budget, self._seen[number].tokens if number in self._seen else 0

    def restore(self, number: int, budget: Any, tokens: Any, total: mx.array | None) -> Method | None:
        """The reverse: ``number``'s method where it was decided."""
        if budget is not None:
            at_least("budget", budget, self.share.least)
            return self.share.at(self.first + self.numbers.index(number), budget)
        if total is not None:
            at_least("tokens", tokens, 1)
            self._seen[number] = _Seen(total, tokens)
        return None

    def decide(self) -> None:
        """Read what was seen and choose every layer's method: the one time that the host waits."""
        if self.chosen:
            return
        seen = [self._seen[number] for number in self.numbers]
        means = mx.stack([each.total / each.tokens for each in seen])
        means = means if self.gathered is None else self.gathered(means)
        budgets = self.share.budgets([float(mean) for mean in np.array(means)])
        self.chosen = {n: self.share.at(i, budgets[i]) for i, n in enumerate(self.numbers, self.first)}
