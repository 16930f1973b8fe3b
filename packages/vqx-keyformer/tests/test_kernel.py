"""Keyformer's kernel keeps the rows that MLX operations keep, with the same bits on every target."""

from contextlib import nullcontext
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx.testing import Shape, kept_alike, same_bits_on
from vqx_kernels import Asked, Guard, Method, Rule, attention, step
from vqx_kernels.testing import emulated, recorded
from vqx_keyformer.kernel import RANK

OPTIONS: list[dict[str, Any]] = [{}, {"tau": 0.0}, {"noise": "logit", "recent": 8}]


CASES = [
    *(("model", mx.float32, options) for options in OPTIONS),
    ("model", mx.float16, {**OPTIONS[0], "shape": Shape(64, group=5, width=80)}),
    ("model", mx.bfloat16, {**OPTIONS[0], "shape": Shape(64, group=1, width=256)}),
    ("keys", mx.float16, {**OPTIONS[0], "shape": Shape(64, width=96)}),
]


@pytest.mark.parametrize(("queries", "dtype", "options"), CASES)
def test_the_kernel_keeps_what_mlx_operations_keep(
    queries: Any, dtype: mx.Dtype, options: dict[str, Any]
) -> None:
    chosen = kept_alike("keyformer", queries, dtype=dtype, budget=32, **options)
    assert chosen == (24 if queries == "model" else 0)


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_an_emulated_device_has_the_bits_of_the_host(target: str) -> None:
    for options in OPTIONS:
        same_bits_on(target, emulated(), "keyformer", budget=32, **options)


def test_rows_of_many_blocks_have_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in (("WHOLE", 16), ("SPAN", 16), ("TOGETHER", 0)):
        monkeypatch.setattr(attention, name, rows)
    with recorded() as launches:
        same_bits_on("cuda", nullcontext(), "keyformer", budget=32, **OPTIONS[0])
    blocks = [launch.grid[0] // launch.threadgroup[0] for _, launch in launches if "logits" in launch.name]
    assert set(blocks) == {3}


@pytest.mark.parametrize("target", ["host", "cuda"])
def test_at_tau_0_the_bits_are_those_of_the_mass_alone(target: str) -> None:
    made = np.random.default_rng(4)
    queries, keys = (
        mx.array(made.normal(size=(1, 2, *s)).astype(np.float32)) for s in ((3, 1, 36), (70, 36))
    )
    mass, noise = (mx.array(made.random((1, 2, 70)).astype(np.float32)) for _ in range(2))
    position = mx.broadcast_to(mx.arange(70, dtype=mx.int32), (1, 2, 70))
    asked, rule, guard = Asked(queries, keys, position, 69, 1 / 6), Rule("nothing"), Guard(4, 8)
    alone = Method("alone", "score = mass[at] + gained;\nmass_out[at] = score;", ("mass",), ("mass",))
    with emulated():
        ranked = step(target, asked, rule, RANK, {"mass": mass, "noise": noise}, guard, (0.0,))
        plain = step(target, asked, rule, alone, {"mass": mass}, guard)
        noisy = step(target, asked, rule, RANK, {"mass": mass, "noise": noise}, guard, (2.0,))
    for found, wanted in ((ranked.ranked, plain.ranked), (ranked.written["mass"], plain.written["mass"])):
        assert np.array_equal(np.array(found), np.array(wanted))
    assert not np.array_equal(np.array(noisy.ranked), np.array(plain.ranked))
