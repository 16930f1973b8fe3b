"""How the engine runs a method: options that every method shares."""

import math
import warnings
from dataclasses import dataclass
from typing import Literal, TypeAlias

Queries: TypeAlias = Literal["model", "keys", "centred-keys"]
Cadence: TypeAlias = Literal["block", "token"]
Prompt: TypeAlias = Literal["chunks", "whole"]
Positions: TypeAlias = Literal["absolute", "compact"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where queries come from, and when and how rows go.

    Raises:
        ValueError: for values outside those listed, and for combinations that make no sense.
    """

    queries: Queries | None = None
    """``model``: the model's own; ``keys``: each key stands in for its query; ``centred-keys``: the same
    with the head's mean key taken off. None: the model's own where they can be seen, else centred keys."""
    cadence: Cadence = "block"
    """``block``: a forward's tokens are scored together, then the rows are cut to the budget at once;
    ``token``: one eviction a token, each decided before the next token is looked at."""
    interval: int = 1
    """Tokens generated between two cuts (block cadence); up to ``interval`` rows above the budget."""
    prompt: Prompt = "chunks"
    """``chunks``: cut after every chunk of a prompt; ``whole``: once, when the whole prompt was read."""
    positions: Positions = "absolute"
    """``absolute``: rows keep the rotation they came with; ``compact``: rows stand at 0 to n - 1, for
    streams beyond the trained length."""
    undo: int = 0
    """Tokens that can be taken back, for speculative decoding: the method looks at a token once so many
    more came, and each may be held above the budget."""
    bits: int | None = None
    """Bits of a number of the rows held, as ``mx.quantize`` packs them; None: rows stay as they came."""
    group_size: int = 64
    """Channels that share a scale, where ``bits`` is given."""

    def __post_init__(self) -> None:
        one_of("queries", self.queries, (None, "model", "keys", "centred-keys"))
        one_of("cadence", self.cadence, ("block", "token"))
        one_of("prompt", self.prompt, ("chunks", "whole"))
        one_of("positions", self.positions, ("absolute", "compact"))
        at_least("interval", self.interval, 1)
        at_least("undo", self.undo, 0)
        one_of("bits", self.bits, (None, 2, 3, 4, 5, 6, 8))
        one_of("group_size", self.group_size, (32, 64, 128))
        if self.bits and (self.positions == "compact" or self.undo):
            raise ValueError(
                f"bits={self.bits} with positions={self.positions!r} and undo={self.undo}: rows are held in"
                " fewer bits at positions='absolute' and undo=0 only"
            )
        if self.cadence == "token" and self.interval > 1:
            raise ValueError(
                f"interval={self.interval} with cadence='token': token cadence evicts once a token;"
                " use cadence='block' for intervals"
            )
        if self.undo and (self.cadence, self.positions) != ("block", "absolute"):
            raise ValueError(
                f"undo={self.undo} with cadence={self.cadence!r} and positions={self.positions!r}: tokens can"
                " be taken back at cadence='block' and positions='absolute' only"
            )
        if self.cadence == "token" and self.prompt == "whole":
            raise ValueError(
                "prompt='whole' with cadence='token': token cadence evicts while the prompt is read;"
                " use cadence='block' to cut once at its end"
            )


def one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Refuse a value that is not among those allowed."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name}={value!r} is not known; choose one of {choices}")


def at_least(name: str, value: object, least: int) -> None:
    """Refuse anything but an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give an integer of at least {least}")


def not_negative(name: str, value: object) -> None:
    """Refuse anything but a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{name}={value!r}: give a number of at least 0")


def share(name: str, value: object, what: str = "a number") -> None:
    """Refuse anything but a number from 0 to 1; ``what`` names it in the message."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r}: give {what} from 0 to 1")


def room_beside(budget: int, n_sink: int, recent: int, what: str = "recent") -> None:
    """Refuse guards that leave no row for a score to choose.

    ``recent`` is the number of newest rows kept, named ``what`` in the message.
    """
    at_least("budget", budget, 1)
    at_least("n_sink", n_sink, 0)
    at_least(what, recent, 0)
    if n_sink + recent >= budget:
        raise ValueError(
            f"budget={budget} leaves no room beside n_sink={n_sink} and {what}={recent};"
            f" give a budget of at least {n_sink + recent + 1}, or fewer protected rows"
        )


def warn_without_recent(method: str, recent: int) -> None:
    """Warn where no newest row is safe: rows may go as they come, and the text breaks."""
    if recent == 0:
        warnings.warn(
            f"{method} with recent=0 may evict rows as they come, and the text breaks:"
            " leave recent out, or set it",
            stacklevel=3,
        )
