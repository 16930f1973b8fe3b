"""What frozen noise is for, on streams without a model: ``bench/late_riser.py`` draws the whole picture."""

from __future__ import annotations

from typing import Any

# before MLX: it shows MLX a fast BLAS
import vqx  # isort: split

import mlx.core as mx
import numpy as np
import pytest
from vqx import planted
from vqx.stream import advance
from vqx_keyformer import keyformer_update_batched

SEEDS, LENGTH, BUDGET, N_SINK = 64, 256, 32, 4
TAUS = (0.0, 2.0, 6.0)


@pytest.fixture(scope="module")
def late_riser() -> planted.Planted:
    return planted.late_riser(SEEDS, LENGTH, riser=BUDGET, burst=BUDGET * 5 // 4)


@pytest.fixture(scope="module")
def stable() -> planted.Planted:
    return planted.stable(SEEDS, LENGTH)


def kept(stream: planted.Planted, tau: float) -> tuple[Any, Any]:
    """Positions and masses ``[seeds, budget]``; seeds are heads, so that each has noise of its own."""
    keys = mx.array(stream.keys)
    _, _, mass, _, positions, _ = keyformer_update_batched(
        None, None, None, None, None, keys, keys, N_SINK, BUDGET, recent=0, tau=tau
    )
    assert positions.shape == (SEEDS, BUDGET)  # of 256: rows were evicted
    return np.array(positions), np.array(mass)


def test_the_riser_reads_low_before_its_burst_and_high_after(late_riser: planted.Planted) -> None:
    burst = BUDGET * 5 // 4
    before = planted.attention(late_riser.queries[:, BUDGET + 1 : burst], late_riser.keys[:, :burst])
    assert before[:, BUDGET].max() < 0.25 / burst
    share = planted.attention(late_riser.future, late_riser.keys)[:, BUDGET]
    assert share.min() > 0.25  # of 256 rows


def test_the_late_riser_never_survives_without_noise(late_riser: planted.Planted) -> None:
    assert planted.worth(late_riser, kept(late_riser, 0.0)[0])["survived"] == 0


def test_more_than_half_of_the_late_risers_survive_at_some_tau(late_riser: planted.Planted) -> None:
    found = {tau: planted.worth(late_riser, kept(late_riser, tau)[0]) for tau in TAUS}
    saved = max(found, key=lambda tau: found[tau]["survival"])
    assert found[saved]["survival_interval_95"][0] > 0.5
    assert found[saved]["regret"][0] < found[0.0]["regret"][0] / 2


def test_a_row_without_a_burst_survives_less_often(late_riser: planted.Planted) -> None:
    null = planted.independent(SEEDS, LENGTH, watch=BUDGET)
    without = planted.worth(null, kept(null, 6.0)[0])["survival_interval_95"]
    assert without[1] < planted.worth(late_riser, kept(late_riser, 6.0)[0])["survival_interval_95"][0]


def test_noise_has_nothing_to_rescue_in_a_stable_stream(stable: planted.Planted) -> None:
    found = [planted.worth(stable, kept(stable, tau)[0]) for tau in TAUS]
    assert found[0]["survival"] == 1
    mean, error = found[0]["future_mass"]
    assert all(one["future_mass"][0] < mean + 3 * error for one in found)
    assert found[-1]["future_mass"][0] < mean - 3 * error  # tau 6 costs


@pytest.mark.parametrize("name", ["late_riser", "stable"])
def test_without_noise_it_is_accumulated_mass_bit_for_bit(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VQX_DEVICE", "reference")  # the mass alone has no lines in a kernel
    stream: planted.Planted = request.getfixturevalue(name)
    keys = mx.array(stream.keys)
    plain = advance(
        vqx.Method(vqx.accumulated(itself=False), BUDGET, N_SINK), None, None, None, {}, keys, keys, 0
    )
    positions, mass = kept(stream, 0.0)
    np.testing.assert_array_equal(positions, np.array(plain.positions))
    np.testing.assert_array_equal(mass, np.array(plain.columns["mass"]))
