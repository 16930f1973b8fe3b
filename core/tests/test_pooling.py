"""Pooling along the sequence, against plain loops, whatever the order in which rows are stored."""

import vqx  # noqa: F401  # before mlx

# isort: split

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx.pooling import chunk_means, smoothed

KINDS = {"numpy": np.asarray, "mlx": mx.array}


def rows(n: int = 23, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scores, and positions with gaps in no order: ``[2, 3, n]``."""
    rng = np.random.default_rng(seed)
    position = np.stack([rng.permutation(2 * n)[:n] for _ in range(6)]).reshape(2, 3, n).astype(np.int32)
    return rng.normal(size=(2, 3, n)).astype(np.float32), position


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("kernel", [1, 3, 7, 51])
def test_smoothing_looks_at_neighbours_by_position(kind: str, pool: Any, kernel: int) -> None:
    score, position = rows()
    pooled = smoothed(KINDS[kind](score), KINDS[kind](position), kernel, pool)
    assert isinstance(pooled, mx.array if kind == "mlx" else np.ndarray)
    for b, h in np.ndindex(2, 3):
        order = sorted(range(23), key=lambda row: position[b, h, row])
        for rank, row in enumerate(order):
            around = [score[b, h, order[i]] for i in range(23) if abs(i - rank) <= kernel // 2]
            right = sum(map(float, around)) / kernel if pool == "mean" else max(around)
            assert float(pooled[b, h, row]) == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 2, 5, 60])
def test_a_chunk_gets_the_mean_of_its_counted_rows(kind: str, chunk: int) -> None:
    score, position = rows()
    counted = np.random.default_rng(1).random(position.shape) < 0.7
    score[0, 0, 0], counted[0, 0, 0] = np.nan, False
    means = np.array(chunk_means(*map(KINDS[kind], (score, position)), chunk, KINDS[kind](counted)))
    for b, h in np.ndindex(2, 3):
        chunks = position[b, h] // chunk
        for number in set(chunks):
            inside = score[b, h][(chunks == number) & counted[b, h]].astype(np.float64)
            got = means[b, h][chunks == number]
            assert len(set(got.tolist())) == 1
            assert got[0] == pytest.approx(inside.mean() if len(inside) else 0.0, abs=1e-6)


def test_pooling_one_row_changes_no_bit() -> None:
    score, position = rows()
    for kind in KINDS.values():
        one = chunk_means(kind(score), kind(position), 1, kind(np.ones(position.shape, bool)))
        assert np.array(one).tobytes() == score.tobytes()
        assert np.array(smoothed(kind(score), kind(position), 1)).tobytes() == score.tobytes()


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_the_host_and_the_device_agree_bit_for_bit(pool: Any) -> None:
    score, position = rows(64)
    counted = np.ones(position.shape, bool)
    for function in (
        lambda s, p, c: smoothed(s, p, 5, pool),
        lambda s, p, c: chunk_means(s, p, 1, c),
    ):
        host, device = (function(*map(kind, (score, position, counted))) for kind in KINDS.values())
        assert host.dtype == np.float32
        assert np.array(device).tobytes() == host.tobytes()
