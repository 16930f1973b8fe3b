"""Every variant that a rule compiles goes through the audit: each has a text of its own on a device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx_kernels import attention, probe, verify
from vqx_kernels.attention import Asked, Rule
from vqx_kernels.small import Guard
from vqx_kernels.testing import audited, emulated, recorded


def drawn(
    rows: int, group: int, length: int, width: int, dtype: mx.Dtype, *, sinks: bool
) -> tuple[Asked, mx.array]:
    made = np.random.Generator(np.random.Philox(rows))
    shapes = (1, 2, group, length, width), (1, 2, rows, width), (1, 2, rows)
    queries, keys, mass = (mx.array(made.standard_normal(shape).astype(np.float32)) for shape in shapes)
    position = mx.broadcast_to(mx.arange(rows, dtype=mx.int32), (1, 2, rows))
    learned = mx.array(made.standard_normal(2 * group).astype(np.float32)) if sinks else None
    return Asked(queries.astype(dtype), keys.astype(dtype), position, rows - length, 0.2, learned), mass


def step(asked: Asked, mass: mx.array, rule: Rule) -> Callable[[str], Any]:
    return lambda target: attention.step(target, asked, rule, probe.MASS, {"mass": mass}, Guard(4, 8), (0.9,))


def given(asked: Asked, rule: Rule) -> Callable[[str], Any]:
    wide = asked.queries.astype(mx.float32) * asked.scale
    logits = wide @ asked.keys.astype(mx.float32)[:, :, None].swapaxes(-1, -2)
    return lambda target: attention.mass(target, logits, asked, rule)


FEW = drawn(70, 2, 3, 36, mx.bfloat16, sinks=True)
MANY = drawn(9, 5, 2, 32, mx.float16, sinks=True)  # more sinks than Metal keeps in its constant space
LONG = drawn(1100, 2, 1, 32, mx.float16, sinks=False)
WORK = {
    "own row hidden": step(*FEW, Rule("itself")),
    "greatest of all": step(*FEW, Rule("later", group="max", queries="max")),
    "logits summed": step(*FEW, Rule("later", fuse_logits="sum")),
    "greatest logit, many sinks": step(*MANY, Rule("nothing", fuse_logits="max", queries="mean")),
    "old rows alone": step(FEW[0]._replace(sinks=None), FEW[1], Rule("newest", old=8, fuse_logits="sum")),
    "many blocks": step(*LONG, Rule("nothing")),
    "a prompt": given(FEW[0], Rule("later", decay=0.9)),
    **{name: partial(verify.computed, name=name) for name in verify.WORK if name.startswith("turned")},
}


@pytest.mark.parametrize("name", WORK)
def test_nothing_is_found_in_any_variant(name: str) -> None:
    report = audited(WORK[name], racing=False)
    assert report.launches >= 2
    assert not report.found


def test_keys_have_the_same_bits_however_they_lie() -> None:
    """Rows that are no multiple of 16 bytes, or whose numbers stand apart, go another way on CUDA."""
    asked, _ = LONG
    keys = asked.keys
    broad = mx.concatenate([keys, keys[..., :4]], axis=3)[..., :32]
    apart = mx.contiguous(keys.swapaxes(2, 3)).swapaxes(2, 3)
    with emulated():
        found = [
            np.array(attention.gained("cuda", asked._replace(keys=each), Rule("nothing")))
            for each in (keys, broad, apart)
        ]
    assert found[0].any()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_a_block_of_many_keys_has_the_bits_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for enough, blocks in ((2048, 5), (4, 3), (1, 2)):
        monkeypatch.setattr(attention, "ENOUGH", enough)
        with recorded() as launches:
            found.append(np.array(attention.gained("cuda", LONG[0], Rule("nothing"))))
        grid, block = launches[0][1].grid, launches[0][1].threadgroup
        assert grid[0] // block[0] == blocks
    assert found[0].any()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
