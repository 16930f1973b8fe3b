"""Frozen draws: what they depend on, and what they do not."""

import numpy as np
import pytest
from vqx import kernels
from vqx.noise import BLOCK, NEAR, below_one, frozen, frozen_array


def test_a_draw_depends_on_seed_layer_head_position_and_key() -> None:
    one = frozen(0, 0, 3, 0, 50)
    assert one.shape == (3, 50)
    assert len(np.unique(one)) == one.size
    for other in (frozen(1, 0, 3, 0, 50), frozen(0, 1, 3, 0, 50), frozen(0, 0, 3, 0, 50, key=(1,))):
        assert not np.isin(one, other).any()


def test_a_draw_depends_on_nothing_else() -> None:
    whole = frozen(5, 2, 4, 0, 2 * BLOCK + 9)
    for start, length in ((0, 1), (BLOCK - 1, 2), (BLOCK - 3, BLOCK + 7), (2 * BLOCK, 9)):
        assert frozen(5, 2, 2, start, length).tobytes() == whole[:2, start : start + length].tobytes()


@pytest.mark.parametrize("target", ["cuda", "reference"])
@pytest.mark.parametrize("start", [0, 5, BLOCK, 3 * BLOCK - 2])
@pytest.mark.parametrize("length", [1, 40, BLOCK, 2 * BLOCK, NEAR * BLOCK + 1])
def test_what_the_device_holds_are_the_same_draws(
    start: int, length: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "target", lambda: target)
    found = frozen_array(5, 2, 4, start, length, rank=1)
    assert found.shape == (1, 4, length)
    assert np.array(found[0]).tobytes() == frozen(5, 2, 4, start, length, rank=1).tobytes()
    if length <= BLOCK:
        apart = frozen_array(5, 2, 4, np.array([start, 7]), length, rank=1)
        assert np.array(apart[1]).tobytes() == frozen(5, 2, 4, 7, length, rank=1).tobytes()


def test_uniform_draws_are_uniform_and_stay_below_one() -> None:
    drawn = frozen(0, 0, 1, 0, 20_000)[0]
    assert drawn.dtype == np.float32
    assert abs(drawn.mean() - 0.5) < 0.01
    assert 0 <= drawn.min() < 1e-3 < 0.999 < drawn.max() < 1
    assert below_one(np.array([1 - 2**-53])) < 1


def test_a_law_shapes_the_same_draws() -> None:
    def negative(uniform: np.ndarray) -> np.ndarray:
        return -uniform.astype(np.float32)

    assert np.allclose(frozen(0, 0, 2, 0, 30), -frozen(0, 0, 2, 0, 30, law=negative))
