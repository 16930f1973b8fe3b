"""LagKV by plain loops, from the paper's equations (arXiv 2504.04704, section 3)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def shares(block: Array, behind: Array) -> list[float]:
    """Softmax over the rows of a block of the deviation of their scaled channels."""
    deviations = []
    for row in block:
        scaled = []
        for channel, x in enumerate(row):
            least, greatest = min(behind[:, channel]), max(behind[:, channel])
            scaled.append((x - least) / ((greatest - least) or 1.0))  # the paper leaves 0 / 0 open
        mean = math.fsum(scaled) / len(scaled)
        deviations.append(math.sqrt(math.fsum((x - mean) ** 2 for x in scaled) / (len(scaled) - 1)))
    powers = [math.exp(deviation) for deviation in deviations]
    return [power / math.fsum(powers) for power in powers]


def ranked(keys: Array, values: Array, n_sink: int, lag: int) -> tuple[list[int], float]:
    """Each row's rank within its block (``lag`` for rows in none), and the narrowest gap between rows."""
    ranks, narrowest = [lag] * len(keys), math.inf
    begins = list(range(n_sink, len(keys) - lag + 1, lag))
    for first in begins[:-1]:
        block, behind = slice(first, first + lag), slice(first + lag, first + 2 * lag)
        both = zip(shares(keys[block], keys[behind]), shares(values[block], values[behind]), strict=True)
        score = [(key + value) / 2 for key, value in both]
        order = sorted(range(lag), key=lambda j: score[j])
        for rank, j in enumerate(order):
            ranks[first + j] = rank
        narrowest = min(narrowest, *(score[b] - score[a] for a, b in itertools.pairwise(order)))
    return ranks, narrowest


def kept(
    keys: Array, values: Array, *, budget: int, blocks: list[int], n_sink: int, lag: int
) -> tuple[list[int], float]:
    """Positions left after forwards of these lengths, and the narrowest gap within a block."""
    rows: list[int] = []
    end, narrowest = 0, math.inf
    for size in blocks:
        rows += range(end, end + size)
        end += size
        surplus = len(rows) - budget
        if surplus <= 0:
            continue
        ranks, gap = ranked(keys[rows], values[rows], n_sink, lag)
        narrowest = min(narrowest, gap)
        gone = sorted(range(n_sink, len(rows)), key=lambda j: ranks[j])[:surplus]
        rows = [row for j, row in enumerate(rows) if j not in gone]
    return rows, narrowest
