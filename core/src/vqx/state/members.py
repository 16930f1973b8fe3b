"""The sequences of a batch beside their rows: how each evicts, its padding to come, what its layer saw."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from vqx.state.allotment import Change, cosines
from vqx.state.layer import Plan

Own = Sequence[tuple[int, int]]
"""Of a forward, for each sequence: tokens to skip, and those after them to read."""


class Members(NamedTuple):
    """What is known of each sequence, in the batch's order."""

    plans: tuple[Plan, ...]
    """They differ in what depends on the budget alone, where layers share their rows."""
    change: Change
    skip: tuple[int, ...]
    """Tokens of padding before its first own."""
    left: tuple[int, ...] | None = None
    """Its own tokens until the padding behind them; None: no padding is to come."""

    def taken(self, places: Sequence[int]) -> "Members":
        """These alone."""
        left = None if self.left is None else tuple(self.left[i] for i in places)
        plans, change = tuple(self.plans[i] for i in places), self.change.taken(places)
        return Members(plans, change, tuple(self.skip[i] for i in places), left)

    def joined(self, other: "Members") -> "Members":
        """With those of another batch behind.

        Raises:
            ValueError: padding is yet to come behind tokens of one of them.
        """
        if self.left is not None or other.left is not None:
            raise ValueError("a batch takes others in before prepare, or after finalize")
        change = self.change.beside(other.change)
        return Members(self.plans + other.plans, change, self.skip + other.skip)

    def own(self, length: int) -> Own:
        """Of a forward of ``length`` tokens."""
        skip = [min(skip, length) for skip in self.skip]
        left = (length,) * len(skip) if self.left is None else self.left
        return tuple((a, min(max(b, 0), length - a)) for a, b in zip(skip, left, strict=True))

    def after(self, own: Own) -> "Members":
        """Once these tokens were read."""
        skip = tuple(skip - skipped for skip, (skipped, _) in zip(self.skip, own, strict=True))
        left = self.left
        if left is not None:
            left = tuple(left - new for left, (_, new) in zip(left, own, strict=True))
        return self._replace(skip=skip, left=left)

    @property
    def alike(self) -> bool:
        """Whether all evict in one way, which is decided."""
        methods = [plan.method for plan in self.plans]
        return not self.undecided and all(method.budget == methods[0].budget for method in methods)

    @property
    def undecided(self) -> list[int]:
        """Those whose layers have yet to decide what they keep of them."""
        return [i for i, plan in enumerate(self.plans) if plan.method.share is not None]

    def decided(self, place: int, plan: Plan) -> "Members":
        """When the layers have decided."""
        after = self._replace(plans=(*self.plans[:place], plan, *self.plans[place + 1 :]))
        return after if after.undecided else after._replace(change=Change(None, self.change.tokens))

    def seen(self, own: Own, before: mx.array, change: mx.array) -> "Members":
        """Once the forward showed what ``vqx.EvictingCache.see`` takes, of those undecided."""
        looked = [
            0 if plan.method.share is None or (new == 1 and seen) else new
            for plan, (_, new), seen in zip(self.plans, own, self.change.tokens, strict=True)
        ]
        if not any(looked):
            return self
        token, skip = mx.arange(before.shape[1]), mx.array([skip for skip, _ in own])[:, None]
        mine = (token >= skip) & (token < skip + mx.array(looked)[:, None])
        found = mx.where(mine, cosines(before, change), 0.0)
        return self._replace(change=self.change.more(mx.sum(found, axis=1), looked))


def unfit(plan: Plan) -> str:
    """Why caches of this plan read one sequence each; empty where they can be batched."""
    if plan.method.floor is not None and plan.across is not None:
        return "processes share the heads of a layer, and these share a budget"
    return ""


def check_alike(one: Any, other: Any) -> None:
    """Refuse two caches that do not evict alike: made by one call, or by equal ones.

    Raises:
        ValueError: says so.
    """
    if one.plan.method.scorer is other.plan.method.scorer or one.recipe is other.recipe is not None:
        return
    if one.recipe is None or other.recipe is None or one.recipe().words != other.recipe().words:
        raise ValueError(
            "caches of different methods or options cannot be read in one batch: make them alike"
        )
