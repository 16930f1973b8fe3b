"""What caches hold over time: the rows kept by each head, and their scores, read between two forwards.

Caches are only looked at, so one that nobody records pays nothing. A row that went never comes back: one
number for each row, the step at which it had gone, says when it was held.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from vqx import EvictingCache
from vqx.state.settling import ranked

Floats = npt.NDArray[np.float32]


class Recording(NamedTuple):
    """A text, and what became of its rows; N tokens, T steps, a layer's own number of heads H."""

    tokens: list[int]
    """N of them, all read."""
    prompt: int
    """How many were given, the others the model wrote."""
    steps: list[int]
    """For each step, the tokens read by then."""
    layers: list[int]
    """The numbers of the layers that evict."""
    gone: list[npt.NDArray[np.int32]]
    """For each layer ``[H, N]``: the step at which the token's row had gone; T where it stays to the end."""
    scores: list[list[Floats]]
    """For each step and layer ``[H, tokens read]``: inf where no score can evict, NaN where nothing is held
    or a replay decides later."""

    def share(self, step: int, layer: int | None = None, head: int | None = None) -> Floats:
        """Of the heads chosen (a layer by its place in ``layers``), the part that hold each token read."""
        step %= len(self.steps)
        chosen = [self.gone[layer]] if layer is not None else self.gone
        rows = np.concatenate([one if head is None else one[head : head + 1] for one in chosen])
        share: Floats = (rows[:, : self.steps[step]] > step).mean(axis=0, dtype=np.float32)
        return share


def record(
    model: nn.Module,
    caches: Sequence[Any],
    prompt: Sequence[int],
    *,
    before: Sequence[int] = (),
    write: int = 32,
    chunk: int = 64,
    ends: Sequence[int] = (),
    advance: Callable[[int], None] = lambda tokens: None,
) -> Recording:
    """Read a prompt and write on greedily, looking at the caches after each forward.

    Args:
        caches: of ``vqx.make_cache``.
        prompt: tokens; read ``chunk`` at once, the last alone, as mlx-lm does.
        before: the tokens that the caches have read.
        write: tokens to write, fewer where one of ``ends`` comes.
        advance: called with the number of tokens read or written.

    Raises:
        ValueError: no prompt, no cache that evicts, or caches made with ``undo``.
    """
    evicting = [cache for cache in caches if isinstance(cache, EvictingCache)]
    if not prompt:
        raise ValueError("no tokens to read: give a text")
    if not evicting:
        raise ValueError("none of these caches can be recorded: make them with vqx.make_cache, without undo")
    tokens: list[int] = [*before]
    steps: list[int] = []
    looks: list[list[_Look]] = []

    def read(part: Sequence[int]) -> int:
        logits = model(mx.array([part]), cache=caches)
        tokens.extend(part)
        steps.append(len(tokens))
        looks.append([_look(cache) for cache in evicting])
        advance(len(part))
        token: int = mx.argmax(logits[0, -1]).tolist()  # type: ignore[assignment]
        return token

    *most, latest = prompt
    for first in range(0, len(most), chunk):
        read(most[first : first + chunk])
    latest = read([latest])
    for _ in range(write):
        if latest in ends:
            break
        latest = read([latest])
    gone = [_gone([look[place].held for look in looks]) for place in range(len(evicting))]
    scores = [[one.score for one in look] for look in looks]
    return Recording(
        tokens, len(before) + len(prompt), steps, [cache.number for cache in evicting], gone, scores
    )


def pieces(decode: Callable[[list[int]], str], tokens: Sequence[int]) -> list[str]:
    """The text of each token; of a character that several tokens make up, all of it at the last."""
    found, before, start = [], 0, 0
    for end in range(1, len(tokens) + 1):
        known, text = decode([*tokens[before:start]]), decode([*tokens[before:end]])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            found.append("")
            continue
        found.append(text[len(known) :])
        before, start = start, end
    return found


class _Look(NamedTuple):
    held: npt.NDArray[np.bool_]  # [H, tokens read]
    score: Floats  # [H, tokens read]


def _look(cache: EvictingCache) -> _Look:
    """The first sequence of a batch, by position."""
    seen, layer = cache.tokens_seen, cache.layer
    if cache.tokens_kept == 0 or layer is None:  # asking lets layers that share their rows decide
        raise ValueError(f"layer {cache.number} was not used by the model")
    position, score, stays = (np.array(array[0]) for array in ranked(cache.plan, layer))
    held, scores = np.zeros((len(position), seen), bool), np.full((len(position), seen), np.nan, np.float32)
    head, row = np.nonzero(position < seen)
    held[head, position[head, row]] = stays[head, row]
    scores[head, position[head, row]] = score[head, row]
    return _Look(held, scores)


def _gone(held: Sequence[npt.NDArray[np.bool_]]) -> npt.NDArray[np.int32]:
    """For each row the step from which on it is not held, ``[H, N]``."""
    gone = np.full(held[-1].shape, len(held), np.int32)
    for step in reversed(range(len(held))):
        here = gone[:, : held[step].shape[1]]
        here[~held[step]] = step
    return gone
