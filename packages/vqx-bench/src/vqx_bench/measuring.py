"""Times of several contenders, taken in turns, so that whatever else the machine does weighs on all."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx


class Measured(NamedTuple):
    """What one contender took, with the extremes over rounds."""

    median: float  # milliseconds
    least: float
    most: float
    ratio: float  # to the contender that is measured against, round by round; the median of them
    ratio_least: float
    ratio_most: float
    peak: int  # bytes of memory above what was held before


def alternate(
    runs: Mapping[str, Callable[[], float]], base: str, rounds: int, warm: int = 1
) -> dict[str, Measured]:
    """Run every contender once a round, in turns whose order goes back and forth.

    Args:
        runs: each does its work and returns the milliseconds that it took.
        base: the one that the others are divided by.
        warm: rounds before those that count.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    peaks = dict.fromkeys(runs, 0)
    for number in range(warm + rounds):
        for name in reversed([*runs]) if number % 2 else runs:
            held = mx.get_active_memory()
            mx.reset_peak_memory()
            took = runs[name]()
            if number >= warm:
                times[name].append(took)
                peaks[name] = max(peaks[name], mx.get_peak_memory() - held)
    return {name: _measured(each, times[base], peaks[name]) for name, each in times.items()}


CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
"""What time is: the processor's own is the same however busy the machine is, and knows no GPU."""


def milliseconds(work: Callable[[], object], each: int = 1, clock: str = "wall") -> float:
    """The time of one of ``each`` pieces of work, by one of ``CLOCKS``."""
    now = CLOCKS[clock]
    mx.synchronize()
    start = now()
    work()
    mx.synchronize()
    return (now() - start) / each * 1e3


def _measured(each: Sequence[float], base: Sequence[float], peak: int) -> Measured:
    ratios = [one / other for one, other in zip(each, base, strict=True)]
    return Measured(
        statistics.median(each),
        min(each),
        max(each),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        peak,
    )
