"""Everything that can be tried on a kernel without its device, in one call."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vqx_kernels.testing import races, static
from vqx_kernels.testing.emulator import Conditions, Launch, dispatch
from vqx_kernels.testing.places import recorded
from vqx_kernels.testing.toolchain import Refused

VARIED = (
    Conditions(order="reverse"),
    *(Conditions(order="random", seed=seed) for seed in range(1, 5)),
    Conditions(reduce="reverse"),
    Conditions(flush=True),
    Conditions(poison=0),
    Conditions(contract=True),
)
"""Under all of which a kernel has to give the same bits."""


class Report(NamedTuple):
    """What was found wrong, by the check that found it; all empty for a good kernel."""

    text: tuple[str, ...] = ()  # refused by clang with address spaces, or by a rule of Metal
    run: tuple[str, ...] = ()  # threads that part, places outside an array, inputs written to
    varied: tuple[str, ...] = ()  # other bits under other conditions
    races: tuple[str, ...] = ()  # ThreadSanitizer's
    launches: int = 0

    @property
    def found(self) -> tuple[str, ...]:
        """All of it."""
        return self.text + self.run + self.varied + self.races


def audited(
    call: Callable[[str], Any],
    *,
    racing: bool = True,
    targets: tuple[str, ...] = ("metal", "cuda"),
    under: Sequence[Conditions] = VARIED,
) -> Report:
    """Run ``call`` for each target on emulated devices, and every launch under all conditions.

    Args:
        call: calls kernels with the target it is given; what they return is not looked at.
        under: conditions beside the usual ones.
        racing: look for data races too, by a build with ThreadSanitizer (a minute the first time).
    """
    text: list[str] = []
    run: list[str] = []
    varied: list[str] = []
    raced: list[str] = []
    count = 0
    for target in targets:
        with recorded() as launches:
            try:
                call(target)
            except Refused as error:
                run.append(f"{target}: {error}")
        count += len(launches)
        for where, launch in launches:
            if where == "metal":
                text += static.refused(launch.name, launch.text)
            if not run:
                varied += _varied(where, launch, under)
                raced += races.found(where, launch) if racing and where == "metal" else []
    return Report(tuple(text), tuple(run), tuple(varied), tuple(raced), count)


def _varied(target: str, launch: Launch, under: Sequence[Conditions]) -> list[str]:
    said = []
    try:
        usual = dispatch(target, launch, Conditions())
        for conditions in under:
            other = dispatch(target, launch, conditions)
            if not all(_bits(a, b) for a, b in zip(usual, other, strict=True)):
                said.append(f"{target}: other bits under {conditions}")
    except Refused as error:
        said.append(f"{target}: {error}")
    return said


def _bits(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one.view(np.uint8), other.view(np.uint8)))
