"""What a method supplies: who matters.

A scorer is a NamedTuple of pure functions over named statistics. Its arithmetic uses operators that
``mlx.core`` and NumPy arrays share, so one definition serves a block of queries on the device and the
token-by-token replay on the host.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Temperature = Callable[[int], float]
"""Tokens generated so far (0 in a prompt) -> divisor of the logits."""


Fused: TypeAlias = Literal["sum", "max"]
"""How the logits of the query heads that share a row become one."""


Over: TypeAlias = Literal["mean", "max"]
"""How several weights of a row become one."""


class Attention(Protocol):
    """The attention of a block of queries over the rows of a layer, never held as one matrix."""

    @property
    def position(self) -> Any:
        """The rows' positions, ``[B, H, n]``."""

    @property
    def start(self) -> Any:
        """The position of the block's first query; ``[B, 1, 1]`` where the sequences of a batch differ."""

    @property
    def length(self) -> int:
        """How many queries the block has."""

    def mass(
        self,
        *,
        decay: float = 1.0,
        itself: bool = True,
        temperature: Temperature | None = None,
        noise: Any = None,
    ) -> Any:
        """Sum over the block's queries of their weights, averaged over the query group: ``[B, H, n]``.

        ``decay`` multiplies what came before at each later query. ``itself=False`` hides from each query
        the row that came with it (but not from the very first, which has no other). ``temperature``
        divides the logits, after ``noise`` ``[B, H, n]`` was added to them.
        """

    def sightings(self, *, itself: bool = True) -> Any:
        """How many of the block's queries could see each row: broadcasts against ``[B, H, n]``."""

    def weights(self, *, old: int = 0, fuse_logits: Fused | None = None, causal: bool = True) -> Any:
        """The weights of every query of the block: ``[B, H, G, S, n]``.

        ``old`` > 0 takes the softmax over the rows before the newest ``old`` only (the others get 0);
        ``fuse_logits`` takes the sum or the greatest of the query group's logits first (G = 1);
        ``causal=False`` lets every query see the rows that came after it.
        """

    def fused(
        self,
        *,
        group: Over = "mean",
        queries: Over = "mean",
        old: int = 0,
        fuse_logits: Fused | None = None,
        causal: bool = True,
    ) -> Any:
        """The weights fused over the query group, then over the block's queries: ``[B, H, n]``.

        Options as of ``weights``, which would hold them all at once.
        """


class Arrivals(NamedTuple):
    """New rows and their place, for the statistics that they start with."""

    keys: Any  # [B, H, S, D]
    values: Any  # [B, H, S, Dv]
    start: Any  # position of the first new row; where the sequences of a batch differ, one for each (NumPy)

    @property
    def batch(self) -> int:
        return int(self.keys.shape[0])

    @property
    def heads(self) -> int:
        return int(self.keys.shape[1])

    @property
    def length(self) -> int:
        return int(self.keys.shape[2])

    def full(self, value: float) -> npt.NDArray[np.float32]:
        """One value for every new row, ``[B, H, S]``."""
        return np.broadcast_to(np.float32(value), (self.batch, self.heads, self.length))


class Held(NamedTuple):
    """What a score looks at: the n rows that a layer holds, and what is known of its queries."""

    stats: Mapping[str, Any]  # each [B, H, n]
    position: Any  # [B, H, n] the tokens' places, in no order
    newest: Any  # the greatest position; [B, 1, 1] where the sequences of a batch differ
    read: Callable[[], tuple[Any, Any]]  # keys and values, for those scores that read rows
    last: Any = None  # the Attention of the latest `window` queries; None where window is 0
    notes: Mapping[str, Any] = {}  # what `note` gathered
    rotary: Any = None  # the layer's vqx.state.positions.Rotary, where the scorer asks for it
    place: Any = 0  # the next query's, as the keys are turned; `newest` + 1 at absolute positions
    across: Callable[[Any], Any] | None = None  # the mean over the processes that share the layer's heads

    @property
    def keys(self) -> Any:
        """``[B, H, n, D]``, in the rows' own dtype."""
        return self.read()[0]

    @property
    def values(self) -> Any:
        """``[B, H, n, Dv]``, in the rows' own dtype."""
        return self.read()[1]

    def over_heads(self, score: Any) -> Any:
        """The mean of ``[B, H, n]`` over all heads of the layer, ``[B, 1, n]``, other processes' too."""
        mean = score.mean(axis=1, keepdims=True)
        return mean if self.across is None else self.across(mean)


def no_statistics(arrivals: Arrivals) -> Mapping[str, Any]:
    """Nothing is remembered between blocks."""
    return {}


class Kernel(NamedTuple):
    """How a kernel observes, scores and chooses the one row that goes, all at once (``vqx.kernels``)."""

    lines: Any
    """A ``vqx_kernels.Method``: what becomes of a row that gained so much, and its score."""
    factors: Callable[[Any, Any, int], tuple[Any, ...]]
    """(the newest position, tokens generated before, how many queries) -> the numbers that the lines use."""
    rule: Mapping[str, Any]
    """Options of ``Attention.mass``, or of ``Attention.fused`` where the scorer has a window."""
    stands_for: tuple[Any, Any]
    """The ``score`` and ``observe`` that it equals: a scorer that wraps others has other ones."""
    layer: bool = False
    """Whether all heads of a layer rank together: a block takes them as one group, where their rows are the
    same ones."""


class Scorer(NamedTuple):
    """Who matters; higher stays, ties evict the oldest."""

    score: Callable[[Held], Any]
    """What is held -> ``[B, H, n]``, or anything that broadcasts to it."""

    init: Callable[[Arrivals], Mapping[str, Any]] = no_statistics
    """The statistics of new rows, each ``[B, H, S]`` float32."""

    observe: Callable[[Mapping[str, Any], Any], Mapping[str, Any]] | None = None
    """(stats, attention of a block) -> stats. None: the scorer accumulates nothing."""

    window: int = 0
    """How many of the latest queries ``score`` wants to see."""

    note: Callable[[Mapping[str, Any], Any, Any], Mapping[str, Any]] | None = None
    """(notes, queries ``[B, H, G, S, D]`` float32, position of the first) -> notes: what is known of all
    queries so far and belongs to no row, each ``[B, ...]``. The queries come less their rotation and times
    the model's scale. Where the sequences of a batch differ, positions are ``[B, 1, 1]``, S is 1, and notes
    that a sequence has none of are 0. Needs ``rotary`` and block cadence."""

    decay: float | None = None
    """``observe`` asks of generated tokens for their mass with this decay, and no more; None: for more."""

    anew: bool = False
    """Whether ``observe`` looks at each block in another way (draws noise for it): generated tokens are then
    observed one by one, else many at once where no score is asked for in between."""

    rotary: bool = False
    """Whether the layer's rotary embedding is wanted, at absolute positions too."""

    kernel: Kernel | None = None
    """What a device with kernels runs instead of ``observe`` and ``score``, where one row goes for one."""

    def with_kernel(
        self,
        lines: Any,
        factors: Callable[[Any, Any, int], tuple[Any, ...]],
        *,
        layer: bool = False,
        **rule: Any,
    ) -> "Scorer":
        """The scorer with a kernel that equals it."""
        return self._replace(kernel=Kernel(lines, factors, rule, (self.score, self.observe), layer))

    @property
    def reads_queries(self) -> bool:
        """Whether queries matter at all: a score of keys, values or positions needs no attention hook."""
        return self.observe is not None or self.window > 0 or self.note is not None


WHOLE = 2**31 - 1
"""The budget of a layer that evicts nothing: no layer reaches it, and its cache grows with the text."""


class Share(NamedTuple):
    """How the layers of a model share their rows, decided once their prompt was read."""

    least: int
    """Rows that every layer keeps, however it is decided."""
    budgets: Callable[[Sequence[float]], Sequence[int]]
    """The cosine of the hidden state before and after each layer's attention -> the layers' budgets."""
    at: Callable[[int, int], "Method"]
    """(index of a layer, its budget) -> its method; the engine fills it in."""


class Method(NamedTuple):
    """One layer's method: who matters, who is safe, and how many rows stay."""

    scorer: Scorer
    budget: int
    n_sink: int = 0
    recent: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    """Ranges of positions, first to last + 1, that are never evicted."""
    floor: float | None = None
    """The heads of a layer share one budget of ``budget`` rows a head, and each keeps this part of its own
    at least; None: every head has its budget alone."""
    share: Share | None = None
    """How the layers share their rows, the same for all; None: every layer has its budget alone."""
    merge: Callable[[Held, Any], Any] | None = None
    """(what is held, which rows go ``[B, H, n]``) -> values ``[B, H, n, Dv]``; None: what goes is dropped."""


def accumulated(*, decay: float = 1.0, itself: bool = True, per_sighting: bool = False) -> Scorer:
    """Score rows by the attention mass they gathered (H2O, arXiv 2306.14048).

    Args:
        decay: multiplies the mass at each query, before its share is added.
        itself: whether a query sees the row that came with it. False where keys stand in for queries; the
            very first row then starts with mass 1.
        per_sighting: divide the mass by the number of queries that could see the row.
    """

    def init(arrivals: Arrivals) -> Mapping[str, Any]:
        counted = {"seen": arrivals.full(0.0)} if per_sighting else {}
        return {"mass": arrivals.full(0.0), **counted}

    def observe(stats: Mapping[str, Any], attention: Attention) -> Mapping[str, Any]:
        gained = attention.mass(decay=decay, itself=itself)
        counted = {"seen": stats["seen"] + attention.sightings(itself=itself)} if per_sighting else {}
        kept = stats["mass"] if decay == 1.0 else stats["mass"] * decay**attention.length
        return {**stats, "mass": kept + gained, **counted}

    def score(held: Held) -> Any:
        if not per_sighting:
            return held.stats["mass"]
        seen = held.stats["seen"]
        return held.stats["mass"] / (seen + (seen == 0))

    return Scorer(score=score, init=init, observe=observe, decay=decay if itself else None)
