"""One forward of a model, as its caches see it: where it ends in the middle, they go back to before it.

A layer is a value, so that what it was before is there for as long as somebody holds it: until the last layer
has read the forward's tokens, and no longer, or a token could not be written in place.
"""

import weakref
from typing import Any

from vqx.state.council import Council


class Turn:
    """The forward under way, shared by the caches of one list.

    Args:
        whole: every cache of the list can go back; else a forward that ended in the middle is refused.
    """

    def __init__(self, whole: bool = True) -> None:
        self.whole = whole
        self._caches: list[weakref.ref[Any]] = []
        self._before: dict[int, dict[str, Any]] = {}
        self._numbers: set[int] = set()  # of the caches that ever joined
        self._made: Turn | None = None
        self.council = Council()

    def join(self, cache: Any) -> None:
        self._caches.append(weakref.ref(cache, self._caches.remove))
        self._numbers.add(cache.number)

    @property
    def caches(self) -> list[Any]:
        """Those that joined and are still there."""
        return [cache for reference in self._caches if (cache := reference()) is not None]

    @property
    def count(self) -> int:
        """Caches of the list."""
        return len(self._caches)

    def made_of(self, number: int) -> "Turn":
        """The turn of the list that is being made of these caches, layer by layer, at the layer ``number``.

        mlx-lm merges and extracts one layer after the other: a layer that comes again begins another list.
        """
        if self._made is None or number in self._made._numbers:
            self._made = Turn(self.whole)
        return self._made

    def begin(self, cache: Any) -> None:
        """A forward begins, if ``cache`` has read the tokens of one already: what that one left is undone.

        Raises:
            ValueError: as of ``undo``.
        """
        if cache.number in self._before:
            self.undo()

    def undo(self) -> None:
        """No forward is under way: what one left that ended in the middle is undone.

        Raises:
            ValueError: layers of other kinds were changed, which cannot go back.
        """
        if not self._before:
            return
        if not self.whole:
            raise ValueError(_BROKEN + ", and layers of other kinds cannot go back: start from fresh caches")
        for other in self.caches:
            if other.number in self._before:
                other.go_back(self._before[other.number])
        self._before = {}

    def read(self, cache: Any, before: dict[str, Any]) -> None:
        """``cache`` is about to read the forward's tokens; ``before`` is all that it is.

        Raises:
            ValueError: it has read them already, and nobody said that another forward begins.
        """
        if cache.number in self._before:
            raise ValueError(_BROKEN + ": start from fresh caches")
        self._before[cache.number] = before

    def done(self) -> None:
        """A cache has read them; once all have, nothing of before is held."""
        if len(self._before) == len(self._caches):
            self._before = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Turn":
        self.undo()
        return Turn(self.whole)  # the copies join one by one, each as it is made


_BROKEN = "the last forward ended before all layers had read its tokens"
