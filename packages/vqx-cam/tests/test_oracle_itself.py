"""The oracle against numbers worked out by hand."""

from types import ModuleType

import numpy as np
import pytest


def test_the_probability_is_clamped_and_needs_targets(oracle: ModuleType) -> None:
    assert oracle.probability(1.0, [1.0, 3.0]) == 0.5
    assert oracle.probability(5.0, [1.0, 3.0]) == 1.0
    assert oracle.probability(0.0, [1.0]) == 0.0
    assert oracle.probability(1.0, [0.0]) == 1.0
    assert oracle.probability(0.0, [0.0]) == 0.0
    assert oracle.probability(1.0, []) == 0.0


@pytest.mark.parametrize(("draw", "gets"), [(0.74, [14.0, 24.0, 30.0]), (0.76, [10.0, 20.0, 30.0])])
def test_a_value_is_shared_among_the_next_rows_or_dropped(
    oracle: ModuleType, draw: float, gets: list[float]
) -> None:
    # No later query sees row 0: attention 1, 1 + 1/2 + 1/3, 1/2 + 1/3, 1/3. Of rows 1 and 2 the mean is 4/3.
    keys, values = np.array([[-99.0], [0.0], [0.0], [0.0]]), np.array([[8.0], [10.0], [20.0], [30.0]])
    options = {"budget": 3, "n_sink": 0, "merge_budget": 2, "base": "age", "scale": 1.0, "blocks": [4]}
    kept = oracle.cam(np.ones((1, 4, 1)), keys, values, np.full(4, draw), **options)
    assert kept.positions == [1, 2, 3]
    assert [float(value[0]) for value in kept.values] == gets
    assert (kept.merges, kept.drops) == (int(draw < 0.75), int(draw > 0.75))
    assert kept.narrowest == pytest.approx(0.01)
