"""One forward of a model, as its caches see it: where it ends in the middle, they go back to before it.

A layer is a value, so that what it was before is there for as long as somebody holds it: until the last layer
has read the forward's tokens, and no longer, or a token could not be written in place.
"""

import weakref
from contextvars import ContextVar
from typing import Any

import mlx.core as mx

from vqx import kernels
from vqx.state.chunks import Chunks
from vqx.state.council import Council

EARLY: ContextVar[int | None] = ContextVar("EARLY", default=None)
"""As of ``early``; None: 128 MiB on a GPU, whose host has more to do than to compute, and elsewhere -1."""

BEGUN: ContextVar[list[mx.array] | None] = ContextVar("BEGUN", default=None)
"""Of a forward that is traced and never runs: the keys up to which it would have begun, one after another."""

EVERY = 2
"""Layers from one that begins early to the next: each beginning costs a launch."""

LONG = 16
"""Tokens of a forward that is begun early; those that are built and never evaluated have fewer."""


def early() -> int:
    """Bytes of old rows that a forward begun early may hold besides; -1: none begins before it is whole."""
    most = EARLY.get()
    usual = 2**27 if mx.default_device() == mx.gpu else -1
    return usual if most is None else most


class Turn:
    """The forward under way, shared by the caches of one list.

    Args:
        whole: every cache of the list can go back; else a forward that ended in the middle is refused.
    """

    def __init__(self, whole: bool = True) -> None:
        self.whole = whole
        self._caches: list[weakref.ref[Any]] = []
        self._before: dict[int, Any] = {}
        self._held = 0  # bytes of the rows among it, in a prompt
        self._unlooked: list[Any] = []  # caches whose new keys nobody looked at
        self._numbers: set[int] = set()  # of the caches that ever joined
        self._made: Turn | None = None
        self.council = Council()
        self.chunks = Chunks()

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
        self._over()

    def start(self, keys: mx.array, held: int) -> None:
        """Have a prompt's forward begin, up to every other layer's ``keys``, while Python writes on.

        What layers were before is held until the last one has read the tokens: where the device is past a
        layer it is held beside what came of it, so nothing more begins where that is more than ``early``.

        Args:
            held: bytes of the rows of the layer that the keys come to.

        Raises:
            ValueError: what the last forward left to be said, of any layer; later, to ask would wait for the
                device.
        """
        if not self._before:
            for cache in self.caches:
                cache.check_pending()
        elif len(self._before) % EVERY == 0 and self._held + self.chunks.nbytes <= early():
            begun = BEGUN.get()
            mx.async_eval(keys) if begun is None else begun.append(keys)
        self._held += held

    def read(self, cache: Any, before: Any) -> None:
        """``cache`` is about to read the forward's tokens; ``before`` is for its ``go_back``.

        Raises:
            ValueError: it has read them already, and nobody said that another forward begins.
        """
        if cache.number in self._before:
            raise ValueError(_BROKEN + ": start from fresh caches")
        self._before[cache.number] = before

    def admitted(self, cache: Any, keys: mx.array, values: mx.array) -> Any:
        """The layer of ``cache`` with new rows, as of ``vqx.state.chunks``; None: it goes by itself."""
        if cache.allotment is not None or cache.as_it_is is None:
            return None
        if not self.chunks.settled(cache):
            self.chunks.settle(cache, self.caches, keys.shape[2])
        return self.chunks.admitted(cache, keys, values)

    def look(self, cache: Any, keys: mx.array) -> bool:
        """Have it found whether the ``keys`` that ``cache`` has read hold NaN, once the last layer has read.

        False: no launch does it for all.
        """
        if not self._unlooked and not kernels.looks(keys):
            return False
        self._unlooked.append(cache)
        if len(self._before) == len(self._caches):
            self._look()
        return True

    def _look(self) -> None:
        caches, self._unlooked = self._unlooked, []
        layers = [cache.as_it_is for cache in caches]
        kinds = [(one.last, one.rows.length, one.rows.keys.shape, one.rows.keys.dtype) for one in layers]
        nans: dict[int, mx.array] = {}
        for kind in set(kinds):
            alike = [place for place, other in enumerate(kinds) if other == kind]
            count, n, *_ = kind
            found = kernels.nans([layers[place].rows.keys for place in alike], n - count, count)
            nans.update(zip(alike, found, strict=True))
        last = len(caches) - 1
        # the others' are evaluated with the last one's, which is tied to what attention gives
        nans[last] = mx.depends([nans[last]], [nans[place] for place in range(last)])[0] if last else nans[0]
        for place, cache in enumerate(caches):
            cache.looked(nans[place])

    def done(self) -> None:
        """A cache has read them; once all have, nothing of before is held."""
        if len(self._before) == len(self._caches):
            self._over()

    def _over(self) -> None:
        self._before, self._held, self._unlooked = {}, 0, []
        self.chunks.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Turn":
        self.undo()
        return Turn(self.whole)  # the copies join one by one, each as it is made


_BROKEN = "the last forward ended before all layers had read its tokens"
