"""Expected Attention by plain loops, from the paper's equations (arXiv 2510.00636, section 3)."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def turn(x: Array, position: int) -> Array:
    """Rotary embedding of base 10,000, channel i paired with channel i + D / 2."""
    half = len(x) // 2
    out = np.empty_like(x)
    for i in range(half):
        angle = position * 10000.0 ** (-i / half)
        out[i] = x[i] * math.cos(angle) - x[half + i] * math.sin(angle)
        out[half + i] = x[half + i] * math.cos(angle) + x[i] * math.sin(angle)
    return out


@functools.cache
def averaged(first: int, future: int, width: int) -> Array:
    """The mean rotation: R[:, i] is the mean image of channel i."""
    total = np.zeros((width, width))
    for position in range(first, first + future):
        for i in range(width):
            total[:, i] += turn(np.eye(width)[i], position)
    return total / future


def scores(
    queries: Array,  # [G, T, D] rotated for positions 0 to T - 1
    keys: Array,  # [n, D]
    values: Array,  # [n, Dv]
    positions: list[int],
    *,
    n_sink: int,
    future: int,
    value_norm: bool,
    epsilon: float,
) -> list[float]:
    """One score for each row of one key-value head."""
    group, seen, width = queries.shape
    scale = 1 / math.sqrt(width)
    rotation = averaged(seen, future, width)
    shares = np.zeros(len(keys))
    for g in range(group):
        raw = np.array([turn(queries[g, t], -t) for t in range(n_sink, seen)])
        mean = raw.mean(axis=0)
        covariance = np.zeros((width, width))
        for q in raw:
            covariance += np.outer(q - mean, q - mean) / len(raw)
        mean, covariance = rotation @ mean, rotation @ covariance @ rotation.T
        exponents = np.full(len(keys), -np.inf)
        for j, k in enumerate(keys):
            if positions[j] >= n_sink:
                exponents[j] = scale * mean @ k + scale**2 / 2 * k @ covariance @ k
        weights = np.exp(exponents - exponents.max())
        shares += weights / weights.sum() / group
    if value_norm:
        shares = (shares + epsilon) * np.sqrt((values**2).sum(axis=1))
    return [float(share) for share in shares]


def kept(
    queries: Array,  # [G, T, D]
    keys: Array,  # [T, D]
    values: Array,  # [T, Dv]
    *,
    budget: int,
    blocks: list[int],
    n_sink: int = 4,
    recent: int = 0,
    future: int = 512,
    value_norm: bool = True,
    epsilon: float = 0.0,
) -> tuple[list[int], float]:
    """Positions left after forwards of these lengths, and the narrowest relative gap that decided."""
    rows: list[int] = []
    end, narrowest = 0, math.inf
    for size in blocks:
        rows += range(end, end + size)
        end += size
        surplus = len(rows) - budget
        if surplus <= 0:
            continue
        found = scores(
            queries[:, :end],
            keys[rows],
            values[rows],
            rows,
            n_sink=n_sink,
            future=future,
            value_norm=value_norm,
            epsilon=epsilon,
        )
        unsafe = [j for j in range(len(rows)) if rows[j] >= n_sink and rows[j] < end - recent]
        ranked = sorted(unsafe, key=lambda j: found[j])
        gone, spared = ranked[:surplus], ranked[surplus:]
        if spared:
            narrowest = min(narrowest, found[spared[0]] / found[gone[-1]] - 1)
        rows = [row for j, row in enumerate(rows) if j not in gone]
    return rows, narrowest
