"""Work that may take only so long: a cache that reads a text token by token would hold up all others."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooLong(Exception):
    """Work was broken off."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Break off what runs longer, between two operations of Python's; None: it may take as long as it likes.

    Raises:
        TooLong: it did.
        ValueError: in another thread than the main one, where no alarm can be set.
    """
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("a bound on time needs the main thread")

    def over(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
