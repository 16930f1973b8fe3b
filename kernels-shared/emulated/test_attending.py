# ruff: noqa: E501 -- a fault stands beside what it replaces
"""Attention of one token, on an emulated CUDA device: what it gives, and from where it reads."""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from vqx_kernels import attending, bodies, kernel
from vqx_kernels.attending import CASES, Case, apart, drawn, exact
from vqx_kernels.testing import Conditions, audited, emulated

EXACT = 2e-5
"""Of what float32 sums and weights of two times 16 bits leave."""


@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_float64(name: str) -> None:
    with emulated():
        assert apart("cuda", CASES[name]) < EXACT


@pytest.mark.parametrize("rows", [2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 513])
@pytest.mark.parametrize("width", [64, 128])
def test_any_number_of_rows_is_read_and_none_behind_them(rows: int, width: int) -> None:
    with emulated():
        assert apart("cuda", Case(mx.bfloat16, 1, 1, 4, rows, width, 4.0)) < EXACT


@pytest.mark.parametrize("name", ["of one token, sharp", "of one token, half"])
def test_no_order_of_threads_and_no_memory_changes_a_bit(name: str) -> None:
    varied = Conditions(order="reverse"), Conditions(order="random", seed=3), Conditions(poison=0)
    report = audited(lambda target: apart(target, CASES[name]), racing=False, targets=("cuda",), under=varied)
    assert report.launches == 1
    assert not report.found


def test_rows_are_read_where_they_lie() -> None:
    """Numbers apart, rows apart, heads behind rows: by another way where it cannot be 16 bytes at a time."""
    case = CASES["of one token, bfloat"]
    queries, keys, values = drawn(case)
    run = attending.launch("cuda", case.dtype, case.batch, case.heads, case.group, case.width)
    wide = [mx.concatenate([each, each[..., :4]], axis=3)[..., : case.width] for each in (keys, values)]
    behind = [mx.contiguous(each.swapaxes(1, 2)).swapaxes(1, 2) for each in (keys, values)]
    across = [mx.contiguous(each.swapaxes(2, 3)).swapaxes(2, 3) for each in (keys, values)]
    asked = mx.contiguous(queries.swapaxes(1, 3)).swapaxes(1, 3)
    factor = attending._factor(case.width**-0.5)
    with emulated():
        first = run([queries, keys, values, factor])[0]
        for each in (wide, behind, across):
            assert mx.array_equal(first, run([asked, *each, factor])[0])


def test_what_is_not_served_is_left_to_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[tuple[int, ...]] = []

    def run(*_: object, **__: object) -> object:
        return lambda inputs: handed.append(inputs[1].shape) or [inputs[0]]

    monkeypatch.setattr(attending, "launch", run)
    monkeypatch.setattr(attending, "wrong", lambda target: "")

    def asked(
        group: int = 4, width: int = 64, dtype: mx.Dtype = mx.float16, batch: int = 4, length: int = 1
    ) -> bool:
        attending._served.cache_clear()
        queries, keys = (
            mx.zeros((batch, 8 * group, length, width), dtype),
            mx.zeros((batch, 8, 9, width), dtype),
        )
        return attending.attended("cuda", queries, keys, keys, 0.1) is not None

    assert asked()
    assert asked(8, 96, mx.bfloat16)
    assert handed == [(4, 8, 9, 64), (4, 8, 9, 96)]
    assert not any((asked(9), asked(width=80), asked(dtype=mx.float32), asked(batch=3), asked(length=2)))
    monkeypatch.setattr(attending, "wrong", lambda target: "it is off")
    assert not asked()
    attending._served.cache_clear()


FAULTS = {
    "rows behind the last one count": (" < n ? dots[o] * factor : -INFINITY", " < n + 3 ? dots[o] * factor : -INFINITY"),
    "rows behind the last one are read": ("lane / 4, n - 1), across)", "lane / 4, n + 6), across)"),
    "a greater logit that its sums are not told of": ("sums.total = sums.total * less;", ""),
    "values of another query's greatest logit": ("lane % 4 * 8 + 4)", "lane % 4 * 8)"),
    "what 16 bits leave of a weight forgotten": ("vqx_mma(T(), sums.value[i], value, rest);", ""),
    "every second tile forgotten": ("if (first + step < n)", "if (first + step < 0)"),
    "rows of a pair in each other's place": ("r / 2 * 8 + lane % 4 * 2 + r % 2", "r / 2 * 8 + lane % 4 * 2 + 1 - r % 2"),
    "words of a key in another order": ("tile.key[e / 2][e % 2][k / 2].word + k % 2 * 2", "tile.key[e / 2][e % 2][k / 2].word + 2 - k % 2 * 2"),
    "a warp that does not wait for the others": ("VQX_BARRIER();", ""),
    "a warp left out": ("for (int w = 0; w < VQX_WARPS; w++) {", "for (int w = 1; w < VQX_WARPS; w++) {"),
    "a thread's part of a total": ("total = total + vqx_xor(total, 2u);", ""),
    "the scale forgotten": ("? dots[o] * factor", "? dots[o]"),
}  # fmt: skip


@pytest.fixture
def _composed_anew() -> Iterator[None]:
    caches = bodies.compose, attending.launch, kernel.prepared, kernel.built
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("_composed_anew")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, (right, wrong) = bodies._text, FAULTS[name]
    assert any(right in usual(file) for file in ("attended.h", "attended.vqx"))
    monkeypatch.setattr(bodies, "_text", lambda file: usual(file).replace(right, wrong))
    case, turned = CASES["of one token, sharp"]._replace(batch=2), (Conditions(order="reverse"),)
    found: list[float] = []
    report = audited(
        lambda target: found.append(apart(target, case)), racing=False, targets=("cuda",), under=turned
    )
    assert report.found or not found[0] < EXACT


def test_an_error_is_told_from_rounding() -> None:
    queries, keys, values = drawn(CASES["of one token, half"])
    right = exact(queries, keys, values)
    rounded = np.array(mx.array(right.astype(np.float32)).astype(mx.float16).astype(mx.float32), float)
    assert attending.beyond(rounded, right, mx.float16) < 1e-7
    assert attending.beyond(rounded * (1 + 2**-9), right, mx.float16) > 1e-3
    rounded[0, 0, 0, 0] = np.nan
    assert attending.beyond(rounded, right, mx.float16) == np.inf
