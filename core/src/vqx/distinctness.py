"""How far a row's key points away from the others: what is unlike the rest is hard to do without.

KeyDiff's score (Park et al., 2025, arXiv 2504.15364, section 3), which Fusion ranks by too.
"""

from typing import Any

from vqx.norms import unit
from vqx.scorers import Held


def distinctness(held: Held) -> Any:
    """-cos(key, mean direction of the keys held): ``[B, H, n]``, from -1 to 1."""
    directions = unit(held.keys)
    anchor = unit(directions.mean(axis=2, keepdims=True))
    return -(directions * anchor).sum(axis=-1)
