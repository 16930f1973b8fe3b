"""The best rows as a mask, on the device and on the host."""

import vqx  # noqa: F401  (before mlx)

# isort: split

import mlx.core as mx
import numpy as np
import pytest
from vqx.ranking import top


def by_sorting(score: np.ndarray, position: np.ndarray, keep: int) -> np.ndarray:
    """Rows sorted by score, then by age: the newest of equal ones is better."""
    best = np.zeros(score.shape, bool)
    for lane in np.ndindex(score.shape[:-1]):
        order = sorted(range(score.shape[-1]), key=lambda i: (score[*lane, i], position[*lane, i]))
        best[*lane, order[len(order) - keep :]] = True
    return best


@pytest.mark.parametrize("keep", [0, 1, 5, 11, 12])
@pytest.mark.parametrize("levels", [2, 1000])
def test_the_highest_scores_are_marked_and_of_equal_ones_the_newest(keep: int, levels: int) -> None:
    random = np.random.default_rng(keep)
    score = random.integers(levels, size=(2, 3, 12)).astype(np.float32)
    score[0, 0, 3:6] = -np.inf
    position = random.permuted(np.broadcast_to(np.arange(12), score.shape), axis=-1) * 7
    right = by_sorting(score, position, keep)
    assert (top(score, position, keep) == right).all()
    assert (np.array(top(mx.array(score), mx.array(position.astype(np.int32)), keep)) == right).all()
