"""Emulated devices in the place of real ones: a plugin's own function runs as it would there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vqx_kernels import attention, kernel, prompts
from vqx_kernels.testing.emulator import Conditions, Kernel, Launch


@contextmanager
def emulated(conditions: Conditions = Conditions()) -> Iterator[None]:  # noqa: B008
    """Kernels for ``metal`` and ``cuda`` run on an emulated device inside this context."""
    with _built_by(lambda *what: Kernel(what[0], conditions, **kernel.texts(*what[:4]))):
        yield


@contextmanager
def recorded() -> Iterator[list[tuple[str, Launch]]]:
    """As ``emulated``; the launches, with the target of each."""
    launches: list[tuple[str, Launch]] = []

    class Recorder(Kernel):
        def launch(self, *given: Any) -> Launch:
            launches.append((self.target, super().launch(*given)))
            return launches[-1][1]

    with _built_by(lambda *what: Recorder(what[0], Conditions(), **kernel.texts(*what[:4]))):
        yield launches


@contextmanager
def _built_by(build: Any) -> Iterator[None]:
    usual = kernel.built
    kernel.built = build
    _forget()
    try:
        yield
    finally:
        kernel.built = usual
        _forget()


def _forget() -> None:
    """Let go of what was built before."""
    for launches in (attention._launches, prompts._launches):
        launches.cache_clear()
