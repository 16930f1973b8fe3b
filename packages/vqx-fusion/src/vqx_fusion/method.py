"""Fusion: a share of the rows by the attention they got, the others by what attention cannot know yet.

vqx's own composition. The first share is H2O's mass (arXiv 2306.14048) over the number of queries that could
see a row; the others are KeyDiff's (arXiv 2504.15364) or Expected Attention's (arXiv 2510.00636).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vqx import Held, LayerInfo, Method, Scorer, accumulated
from vqx.distinctness import distinctness
from vqx.eviction import safe
from vqx.expectation import expected
from vqx.options import at_least, one_of, room_beside, share
from vqx.ranking import library, top


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """Options of Fusion; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows, a share outside 0 to 1.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted."""
    recent: int | None = None
    """Newest rows that are never evicted; None: 32, at most a quarter of the budget."""
    local: float = 0.6
    """Share of the other rows that the mean attention so far chooses; 1 is h2o with ``normalise="seen"``."""
    beyond: Literal["distinct", "expected"] = "distinct"
    """Who chooses the rest: keys unlike the mean key, or the attention expected of queries to come."""

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 1)
        if self.recent is None:
            object.__setattr__(self, "recent", min(32, self.budget // 4))
        room_beside(self.budget, self.n_sink, self.recent or 0)
        one_of("beyond", self.beyond, ("distinct", "expected"))
        share("local", self.local, "a share")


def fusion(config: FusionConfig, *, itself: bool) -> Method:
    """The method of one layer."""
    attended = accumulated(itself=itself, per_sighting=True)
    beyond = Scorer(score=distinctness) if config.beyond == "distinct" else expected(n_sink=config.n_sink)
    guards = Method(attended, config.budget, config.n_sink, config.recent or 0)
    chosen = round(config.local * (config.budget - config.n_sink - guards.recent))
    score = _first_then(attended.score, beyond.score, guards, chosen)
    gathers = beyond._replace(init=attended.init, observe=attended.observe, decay=attended.decay)
    return guards._replace(scorer=gathers._replace(score=score))


def _first_then(
    first: Callable[[Held], Any], rest: Callable[[Held], Any], guards: Method, chosen: int
) -> Callable[[Held], Any]:
    """The ``chosen`` free rows that stand highest by ``first``, above all others in the order of ``rest``."""

    def score(held: Held) -> Any:
        of, position = library(held.position), held.position
        free = of.where(safe(guards, position, held.newest), -of.inf, first(held))
        return of.where(top(free, position, chosen), of.inf, rest(held))

    return score


def build(config: FusionConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    return [fusion(config, itself=layer.queries == "model") for layer in layers]
