"""The kernel expects the attention that MLX operations expect, and keeps the rows that they keep."""

import mlx.core as mx
import numpy as np
import pytest
from vqx import kernels
from vqx.expectation import expected_logits
from vqx.testing import Shape, decoded

vqx_kernels = pytest.importorskip("vqx_kernels")
testing = pytest.importorskip("vqx_kernels.testing")


def known(n: int, width: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    """Keys of two sequences of two heads, with what is known of the three query heads of each."""
    made = np.random.Generator(np.random.Philox(n + width))
    keys = mx.array(made.standard_normal((2, 2, n, width)).astype(np.float32)).astype(dtype)
    root = made.standard_normal((2, 2, 3, width, width)).astype(np.float32) / width
    mean = mx.array(made.standard_normal((2, 2, 3, width)).astype(np.float32) / width**0.5)
    # a part of a longer buffer, as a cache holds them
    return mx.concatenate([keys, keys], axis=2)[:, :, :n], mean, mx.array(root @ root.swapaxes(-1, -2))


@pytest.mark.parametrize(
    ("n", "width", "dtype"),
    [(1, 16, mx.float32), (70, 36, mx.float32), (130, 80, mx.float16), (300, 64, mx.bfloat16)],
)
def test_host_loops_expect_what_mlx_operations_expect(
    n: int, width: int, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = known(n, width, dtype)
    called, loops = [], vqx_kernels.expected
    monkeypatch.setattr(vqx_kernels, "expected", lambda *asked: called.append(asked[0]) or loops(*asked))
    found = {}
    for target in ("reference", "host"):
        monkeypatch.setenv("VQX_DEVICE", target)
        found[target] = np.array(expected_logits(*given))
    assert called == ["host"]
    np.testing.assert_allclose(found["host"], found["reference"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_kernel_keeps_what_mlx_operations_keep(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"budget": 32, "future": 48, "shape": Shape(64)}
    reference = decoded("reference", "expected-attention", dtype=dtype, **options)
    called, loops = [], kernels.expected
    monkeypatch.setattr(kernels, "expected", lambda *given: called.append(loops(*given)) or called[-1])
    found = decoded("host", "expected-attention", dtype=dtype, **options)
    assert len(called) > 20
    assert all(one is not None for one in called)
    assert np.array_equal(found.position, reference.position)


@pytest.mark.parametrize(("n", "width", "dtype"), [(70, 36, mx.float32), (45, 16, mx.bfloat16)])
def test_an_emulated_device_has_the_bits_of_the_host(n: int, width: int, dtype: mx.Dtype) -> None:
    given = known(n, width, dtype)
    found = {}

    def work(target: str) -> None:
        found[target] = np.array(vqx_kernels.expected(target, *given))

    report = testing.audited(work, racing=False)
    assert report.launches == 2
    assert not report.found
    work("host")
    assert all(np.array_equal(found["host"], found[target]) for target in ("metal", "cuda"))
