"""A kernel stands beside MLX operations, and gives what they give: here as the host's loops."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx import EvictingCache, Method, Options, accumulated, kernels, make_cache
from vqx.host import watching
from vqx.state import attention
from vqx.state.attention import Block

vqx_kernels = pytest.importorskip("vqx_kernels")
testing = pytest.importorskip("vqx_kernels.testing")


def block(length: int, dtype: mx.Dtype, width: int = 64, *, sinks: bool = False, **more: Any) -> Block:
    made = np.random.Generator(np.random.Philox(3))
    queries, keys = (
        mx.array(made.standard_normal(shape).astype(np.float32)).astype(dtype)
        for shape in ((2, 2, 3, length, width), (2, 2, 120, width))
    )
    position = made.permuted(np.tile(np.arange(120, dtype=np.int32), (2, 2, 1)), axis=2)
    learned = mx.array(made.standard_normal(6).astype(np.float32)) if sinks else None
    # keys are a part of a longer buffer, as a cache holds them, and queries one from the middle
    longer = mx.concatenate([mx.zeros_like(queries), queries, mx.zeros_like(queries)], axis=3)
    keys, queries = mx.concatenate([keys, keys], axis=2)[:, :, :120], longer[..., length : 2 * length, :]
    place, start, scale = mx.array(position), 120 - length, width**-0.5
    return Block(queries, keys, place, start, scale, sinks=learned, **more)


CASES: list[tuple[str, Block, dict[str, Any]]] = [
    ("mass", block(1, mx.float32), {}),
    ("mass", block(1, mx.bfloat16), {"decay": 0.9}),
    ("mass", block(5, mx.float16), {"decay": 0.9}),
    ("mass", block(5, mx.float32), {"itself": False}),
    ("mass", block(5, mx.float32, mask=None), {}),
    ("mass", block(5, mx.float32, sinks=True), {}),
    ("fused", block(1, mx.float32, 80), {}),
    ("fused", block(8, mx.bfloat16, 36), {}),
    ("fused", block(8, mx.float16, 256), {"group": "max", "queries": "max"}),
    ("fused", block(8, mx.float32), {"old": 8, "queries": "max"}),
    ("fused", block(8, mx.float32, sinks=True), {"old": 8}),
    ("fused", block(8, mx.float32, sinks=True), {"fuse_logits": "sum"}),
    ("fused", block(8, mx.float32), {"fuse_logits": "max", "causal": False}),
]


@pytest.mark.parametrize(("name", "asked", "options"), CASES)
def test_host_loops_give_what_mlx_operations_give(
    name: str, asked: Block, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VQX_DEVICE", "reference")
    reference = np.array(getattr(asked, name)(**options))
    monkeypatch.setenv("VQX_DEVICE", "host")
    called, loops = [], vqx_kernels.gained
    monkeypatch.setattr(vqx_kernels, "gained", lambda *given: called.append(given[0]) or loops(*given))
    found = np.array(getattr(asked, name)(**options))
    assert called == ["host"]
    # sums in another order and an exponential of our own: a few units in the last place
    np.testing.assert_allclose(found, reference, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_a_prompts_mass_is_that_of_mlx_operations(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = block(100, mx.float16, sinks=True)
    monkeypatch.setattr(attention, "TILE", 2 * 2 * 3 * 120 * 40)
    monkeypatch.setenv("VQX_DEVICE", "reference")
    options: dict[str, Any] = {"decay": 0.97, "itself": False}
    references = [np.array(asked.mass(**given)) for given in ({}, options)]
    called, shared = [], vqx_kernels.mass
    monkeypatch.setattr(vqx_kernels, "mass", lambda *given: called.append(given[0]) or shared(*given))
    monkeypatch.setattr(kernels, "target", lambda: target)
    with testing.emulated():
        for given, reference in zip(({}, options), references, strict=True):
            np.testing.assert_allclose(np.array(asked.mass(**given)), reference, rtol=2e-5, atol=1e-9)
    assert called == [target] * 6  # three tiles each


def prompt(**more: Any) -> Block:
    """A block whose own rows are the last ones, in their order, behind others in any."""
    asked = block(100, mx.bfloat16, ordered=True, **more)
    kept = np.random.Generator(np.random.Philox(4)).permuted(np.tile(np.arange(20), (2, 2, 1)), axis=2)
    own = np.broadcast_to(np.arange(20, 120), (2, 2, 100))
    return asked._replace(position=mx.array(np.concatenate([kept, own], axis=2).astype(np.int32)))


NOISE = mx.array(np.random.Generator(np.random.Philox(5)).standard_normal((2, 2, 120)).astype(np.float32))


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (prompt(sinks=True), {}),
        (prompt(), {"decay": 0.97, "itself": False}),
        (prompt(mask=None), {"noise": NOISE, "temperature": lambda _: 1.5}),
    ],
)
def test_tensor_cores_write_no_logits_of_a_prompt(
    asked: Block, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VQX_DEVICE", "reference")
    reference = np.array(asked.mass(**options))
    monkeypatch.setattr(kernels, "target", lambda: "cuda")
    monkeypatch.setattr(vqx_kernels.tensor, "_tried", lambda _: (False, ""))  # in no record
    with testing.recorded() as launches:
        np.testing.assert_allclose(np.array(asked.mass(**options)), reference, rtol=2e-5)
    assert [launch.outputs[0][0] for _, launch in launches] == ["bars", "piece"]


@pytest.mark.parametrize(
    "asked",
    [
        prompt()._replace(ordered=False),
        prompt()._replace(later=1),
        prompt()._replace(keys=prompt().keys.astype(mx.float32)),
        prompt(width=40),
        prompt(mask=mx.ones((2, 1, 100, 120), mx.bool_)),
    ],
)
def test_what_tensor_cores_cannot_take_is_left_to_others(
    asked: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "target", lambda: "cuda")
    monkeypatch.setattr(vqx_kernels.tensor, "_tried", lambda _: (False, ""))  # in no record
    assert kernels.prompt_mass(asked) is None


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_a_prompts_weights_fuse_as_by_mlx_operations(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = block(100, mx.float16, sinks=True)
    monkeypatch.setattr(attention, "TILE", 2 * 2 * 3 * 120 * 40)
    monkeypatch.setenv("VQX_DEVICE", "reference")
    settings: list[dict[str, Any]] = [{"group": "max", "queries": "max"}, {"group": "max"}, {}]
    references = [np.array(asked.fused(**given)) for given in settings]
    monkeypatch.setattr(kernels, "target", lambda: target)
    with testing.recorded() as launches:
        for given, reference in zip(settings, references, strict=True):
            np.testing.assert_allclose(np.array(asked.fused(**given)), reference, rtol=2e-5, atol=1e-9)
    assert len(launches) >= 9  # three tiles each


@pytest.mark.parametrize(
    "asked",
    [
        block(1, mx.float32, mask=mx.ones((2, 1, 1, 120), mx.bool_)),
        block(2, mx.float32)._replace(elsewhere=True),
        block(90, mx.float32),
    ],
)
def test_what_no_kernel_serves_is_left_to_mlx_operations(
    asked: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VQX_DEVICE", "host")
    assert kernels.gained(asked) is None


def test_a_device_that_is_not_there_is_refused_before_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VQX_DEVICE", "tpu")
    with pytest.raises(ValueError, match="choose one of"):
        block(1, mx.float32).mass()


@pytest.mark.parametrize(
    ("target", "served"),
    [
        ("host", ["turned", "spared", "expected"]),
        ("cuda", ["turned", "spared"]),
        ("metal", []),
        ("reference", []),
    ],
)
def test_keys_alone_are_served_where_it_paid(
    target: str, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    for name in ("turned", "spared", "expected"):
        monkeypatch.setattr(vqx_kernels, name, lambda where, *_, name=name, **__: asked.append((name, where)))
    monkeypatch.setattr(kernels, "target", lambda: target)
    keys, place = mx.zeros((1, 2, 5, 8)), mx.zeros((1, 2, 5), mx.int32)
    kernels.turned(keys, place, lambda: (place, keys, keys))
    kernels.spared(keys, place, 0.5)
    kernels.expected(keys, keys[:, :, None, 0], mx.zeros((1, 2, 1, 8, 8)))
    assert asked == [(name, target) for name in served]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_nan_is_found_in_any_of_the_rows_asked_for_and_in_no_other(
    dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vqx_kernels.gathering, "LOOKED", 70)  # three pieces of 10 rows of 16 numbers
    vqx_kernels.gathering._look.cache_clear()
    arrays = [mx.full((2, 2, 20, 16), -mx.inf, dtype) for _ in range(5)]
    arrays[1::2] = [array.swapaxes(1, 2) for array in (mx.full((2, 20, 2, 16), 1.0, dtype),) * 2]
    for number, place in enumerate(((0, 0, 4, 15), (0, 0, 5, 0), (1, 1, 14, 15), (1, 0, 15, 0))):
        arrays[number][place] = mx.nan
    found = []
    for where in ("reference", "cuda"):
        monkeypatch.setattr(kernels, "target", lambda where=where: where)
        with testing.recorded() as launches:
            found.append([nan.item() for nan in kernels.nans(arrays, 5, 10)])
    assert found == [[False, True, True, False, False]] * 2
    assert len(launches) == 1
    vqx_kernels.gathering._look.cache_clear()


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_a_prompts_cut_keeps_the_rows_of_mlx_operations(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = np.random.Generator(np.random.Philox(8))
    keys, queries = (mx.array(made.standard_normal((1, 2, 60, 16)).astype(np.float32)) for _ in range(2))
    method = Method(accumulated(per_sighting=True), 20, n_sink=2, recent=3, spans=((7, 9),))
    found = []
    for where in ("reference", target):
        monkeypatch.setattr(kernels, "target", lambda where=where: where)
        cache = EvictingCache(method, Options(queries="model"))
        with testing.recorded() as launches:
            for first in (0, 30, 50):
                read, _ = cache.update_and_fetch(*[keys[:, :, first : first + 30]] * 2)
                cache.observe(queries[:, :, first : first + 30], read, 0.25, "causal", None)
            found.append([np.array(cache.position), np.array(cache.layer.rows.columns["mass"])])
        assert ("guarded" in "".join(launch.name for _, launch in launches)) == (where == target)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=2e-5)


@pytest.mark.parametrize("interval", [1, 6])
@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("name", ["toy", "toy-newest"])
def test_a_token_reads_what_is_left_by_a_kernel_and_before_that_by_mlx(
    name: str, interval: int, tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = tiny_llama(2, dtype=mx.float16, **sizes)
    text = mx.random.randint(0, 97, (2, 40), key=mx.random.key(2))
    monkeypatch.setattr(watching, "ONCE", 1)
    monkeypatch.setattr(vqx_kernels.attending, "BLOCKS", 1)
    called: list[int] = []

    def attended(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array | None:
        called.append(keys.shape[2])
        return vqx_kernels.attended("cuda", queries, keys, values, scale)

    def read(own: bool) -> list[mx.array]:
        caches = make_cache(model, name, budget=20, interval=interval)
        found = [model(text[:, :16], cache=caches)]
        monkeypatch.setattr(kernels, "attended", attended if own else lambda *_: None)
        steps = [text[:, token : token + 1] for token in range(16, 40)]
        return [*found, *[model(step, cache=caches) for step in steps]]

    with testing.emulated():
        own, plain = read(True), read(False)
    before = 1 + 4 + interval  # forwards, a prompt among them, until a row is missing
    assert len(called) == 2 * (len(own) - before)
    for one, other in zip(own[:before], plain[:before], strict=True):
        assert mx.array_equal(one, other)
    apart = [np.array(one) - np.array(other) for one, other in zip(own[before:], plain[before:], strict=True)]
    assert 0 < np.max(np.abs(apart)) < 0.02  # of logits of about 1, in float16


def test_a_tokens_attention_is_asked_of_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys = mx.zeros((4, 32, 1, 64), mx.float16), mx.zeros((4, 8, 9, 64), mx.float16)
    monkeypatch.setattr(vqx_kernels, "attended", lambda target, *given: (target, *given))
    monkeypatch.setattr(kernels, "target", lambda: "cuda")
    assert kernels.attended(queries, keys, keys, 0.1) == ("cuda", queries, keys, keys, 0.1)
    for where in ("reference", "host", "metal"):
        monkeypatch.setattr(kernels, "target", partial(str, where))
        assert kernels.attended(queries, keys, keys, 0.1) is None
