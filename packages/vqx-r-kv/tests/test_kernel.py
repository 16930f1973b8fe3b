"""R-KV's kernel spares what MLX operations spare, and keeps the rows that they keep, on every target."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx import kernels
from vqx.norms import unit
from vqx.testing import decoded
from vqx_r_kv.method import redundancy, spared

vqx_kernels = pytest.importorskip("vqx_kernels")
testing = pytest.importorskip("vqx_kernels.testing")


def rows(n: int, width: int, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array]:
    """Directions of few topics, so that rows repeat each other, in any order, two sequences of two heads."""
    made = np.random.Generator(np.random.Philox(n + width))
    topics = made.standard_normal((9, width))[made.integers(9, size=(2, 2, n))]
    keys = mx.array((topics + 0.8 * made.standard_normal(topics.shape)).astype(np.float32)).astype(dtype)
    place = made.permuted(np.tile(3 * np.arange(n, dtype=np.int32), (2, 2, 1)), axis=2)
    # a part of a longer buffer, as a cache holds them
    return mx.concatenate([keys, keys], axis=2)[:, :, :n], mx.array(place)


@pytest.mark.parametrize(("n", "width"), [(1, 16), (70, 36), (300, 64)])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.99])
def test_host_loops_spare_what_mlx_operations_spare(n: int, width: int, threshold: float) -> None:
    keys, position = rows(n, width)
    reference = np.array(spared(unit(keys), position, threshold))
    found = np.array(vqx_kernels.spared("host", unit(keys), position, threshold))
    assert reference.any() == (n > 1 and threshold < 0.9)
    np.testing.assert_allclose(found, reference, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_redundancy_is_that_of_mlx_operations(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, position = rows(120, 64, dtype)
    called, loops = [], vqx_kernels.spared
    monkeypatch.setattr(vqx_kernels, "spared", lambda *given: called.append(given[0]) or loops(*given))
    found = {}
    for target in ("reference", "host"):
        monkeypatch.setenv("VQX_DEVICE", target)
        found[target] = np.array(redundancy(keys, position, 0.5))
    assert called == ["host"]
    np.testing.assert_allclose(found["host"], found["reference"], rtol=2e-5)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_kernel_keeps_what_mlx_operations_keep(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"budget": 32, "threshold": 0.2, "mix": 0.01}
    reference = decoded("reference", "r-kv", dtype=dtype, **options)
    called, loops = [], kernels.spared
    monkeypatch.setattr(kernels, "spared", lambda *given: called.append(loops(*given)) or called[-1])
    found = decoded("host", "r-kv", dtype=dtype, **options)
    assert len(called) > 20
    assert all(one is not None for one in called)
    assert np.array_equal(found.position, reference.position)


@pytest.mark.parametrize(("n", "dtype"), [(70, mx.float32), (45, mx.bfloat16)])
def test_an_emulated_device_has_the_bits_of_the_host(n: int, dtype: mx.Dtype) -> None:
    keys, position = rows(n, 36, dtype)
    found = {}

    def work(target: str) -> None:
        found[target] = np.array(vqx_kernels.spared(target, keys, position, 0.5))

    report = testing.audited(work, racing=False)
    assert report.launches == 4
    assert not report.found
    work("host")
    assert found["host"].any()
    assert all(np.array_equal(found["host"], found[target]) for target in ("metal", "cuda"))
