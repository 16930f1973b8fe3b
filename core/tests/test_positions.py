"""Positions: rows keep the rotation they came with, or are turned once, by the model's own module.

The oracle needs no formula: a rotary module is linear for one position, so ``rope(identity, offset=p)`` is
its matrix.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope
from vqx import Arrivals, EvictingCache, Held, Method, Options, Scorer, accumulated, kernels, make_cache
from vqx.state.positions import Rotary, rotary_of

D, BUDGET, N_SINK = 64, 16, 4
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 32,
    "long_factor": [1.5] * 32,
}


def unturned(x: mx.array, offset: Any = 0) -> mx.array:
    """A layer without rotary embedding, as smollm3 has them."""
    return x


ROPES: dict[str, Callable[[], Any]] = {
    "plain": lambda: initialize_rope(D, 10000.0, False),
    "base 1e6": lambda: initialize_rope(D, 1e6, False),
    "interleaved": lambda: nn.RoPE(D, traditional=True),
    "partial": lambda: nn.RoPE(D // 4),
    "partial and interleaved": lambda: nn.RoPE(D // 4, traditional=True),
    "linear": lambda: initialize_rope(D, 10000.0, False, {"rope_type": "linear", "factor": 4.0}),
    "llama3": lambda: initialize_rope(D, 500000.0, False, LLAMA3),
    "yarn": lambda: initialize_rope(D, 10000.0, False, YARN),
    "longrope": lambda: initialize_rope(D, 10000.0, False, LONG, 1024),
    "none": lambda: unturned,
}
ALIKE = Scorer(score=lambda held: 0.0)
RAW = np.random.default_rng(8).normal(size=(2, 80, D)).astype(np.float32)


def matrix(rope: Any, position: int, width: int = D) -> np.ndarray[Any, Any]:
    """``[D, D]`` float64: x at a position is x times this."""
    turned = rope(mx.eye(width).reshape(width, 1, 1, width), offset=position)
    return np.array(turned)[:, 0, 0].astype(np.float64)


def run(
    rope: Any, forwards: list[int], method: Method, dtype: mx.Dtype = mx.float32, **engine: Any
) -> EvictingCache:
    """Feed ``RAW``, rotated as a model would, at the cache's own offset."""
    options = Options(**{"queries": "keys", **engine})
    rotary = rotary_of(rope, D) if options.positions == "compact" else None
    cache = EvictingCache(method, options, rotary=rotary)
    for length in forwards:
        now = mx.array(RAW[None, :, cache.tokens_seen : cache.tokens_seen + length]).astype(dtype)
        cache.update_and_fetch(rope(now, offset=cache.offset), now)
    return cache


def error(rope: Any, cache: EvictingCache, places: Callable[[int, int], int]) -> float:
    """The largest difference of a key that attention reads from its raw key at ``places(rank, position)``,
    where rank is how many older rows are held."""
    keys, position = np.array(cache.keys_and_values()[0])[0], np.array(cache.position)[0]
    expected, rank = np.zeros(keys.shape), np.argsort(np.argsort(position))
    for head, slot in np.ndindex(position.shape):
        token = position[head, slot]
        expected[head, slot] = RAW[head, token] @ matrix(rope, places(int(rank[head, slot]), token))
    return float(np.abs(keys - expected).max())


FORWARDS = [[1] * 60, [40, 1, 1, 1, 10, 1, 1, 5], [60]]


@pytest.mark.parametrize("forwards", FORWARDS, ids=["one by one", "mixed", "at once"])
@pytest.mark.parametrize("name", ROPES)
def test_absolute_rows_stay_where_they_were_and_the_next_token_follows_the_last(
    name: str, forwards: list[int]
) -> None:
    rope = ROPES[name]()
    cache = run(rope, [*forwards, 1], Method(accumulated(itself=False), BUDGET, N_SINK, 2))
    assert cache.offset == sum(forwards) + 1
    assert cache.size() == BUDGET + 1
    assert error(rope, cache, lambda rank, position: position) < 1e-6


@pytest.mark.parametrize("cadence", ["block", "token"])
@pytest.mark.parametrize("forwards", FORWARDS, ids=["one by one", "mixed", "at once"])
@pytest.mark.parametrize("name", ROPES)
def test_compact_rows_close_up_and_the_next_token_follows_them(
    name: str, forwards: list[int], cadence: str
) -> None:
    rope = ROPES[name]()
    method = Method(accumulated(itself=False), BUDGET, N_SINK, 2)
    cache = run(rope, [*forwards, 1], method, positions="compact", cadence=cadence)
    assert cache.size() == BUDGET + 1
    assert cache.offset == BUDGET
    assert np.array(cache.position)[0].max(axis=-1).tolist() == [sum(forwards)] * 2
    assert error(rope, cache, lambda rank, position: rank) < 2e-3


@pytest.mark.parametrize("engine", [{"interval": 5}, {"prompt": "whole"}], ids=str)
def test_compact_rows_close_up_only_when_rows_went(engine: Mapping[str, Any]) -> None:
    rope = ROPES["llama3"]()
    method = Method(accumulated(itself=False), BUDGET, N_SINK, 2)
    seen = 0
    for forwards in ([30], [30, 1], [30, 1, 1], [30, *[1] * 5], [30, *[1] * 8]):
        cache = run(rope, forwards, method, positions="compact", **engine)
        assert error(rope, cache, lambda rank, position: rank) < 2e-3
        seen += cache.size() < sum(forwards)
    assert seen >= 3


@pytest.mark.parametrize("cadence", ["block", "token"])
def test_a_scorer_may_return_its_own_statistics_alone(cadence: str) -> None:
    def observe(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
        return {"mass": stats["mass"] + attention.mass(itself=False)}

    rope, scorer = ROPES["plain"](), accumulated()._replace(observe=observe)
    cache = run(rope, [40, 1, 1, 10, 1], Method(scorer, BUDGET), positions="compact", cadence=cadence)
    assert cache.offset == BUDGET
    assert error(rope, cache, lambda rank, position: rank) < 2e-3


def test_the_part_of_a_key_that_is_not_rotary_is_never_touched() -> None:
    cache = run(nn.RoPE(D // 4), [1] * 60, Method(ALIKE, BUDGET, N_SINK), positions="compact")
    keys, position = np.array(cache.keys_and_values()[0])[0], np.array(cache.position)[0]
    for head in range(2):
        np.testing.assert_array_equal(keys[head, :, D // 4 :], RAW[head, position[head], D // 4 :])


@pytest.mark.parametrize("look", [1, 7, 100], ids=["looked at", "at times", "left alone"])
@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("target", ["reference", "host"])
def test_compact_scores_are_taken_where_rows_and_queries_stand(
    target: str, window: int, interval: int, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And attention reads rows where they stand, whether or not somebody looks between tokens."""
    monkeypatch.setattr(kernels, "target", lambda: target)

    def by_weight(held: Held) -> Any:
        return held.last.weights().mean(axis=2).mean(axis=2)

    rope, budget, asked = ROPES["plain"](), 6, RAW[::-1] * 2
    cache = EvictingCache(
        Method(Scorer(score=by_weight, window=window), budget),
        Options(queries="model", positions="compact", interval=interval),
        rotary=rotary_of(rope, D),
    )
    at = [matrix(rope, place) for place in range(budget + interval)]
    held: list[list[int]] = [[], []]
    for token in range(60):
        now, queries = (mx.array(a[None, :, token : token + 1]) for a in (RAW, asked))
        place = cache.offset
        keys, _ = cache.update_and_fetch(rope(now, offset=place), now)
        if token % look == 0:  # in the middle of a forward
            mx.eval(cache.position)
        cache.observe(rope(queries, offset=place), keys, 0.3, None, None)
        for head, rows in enumerate(held):
            if len(rows) >= budget + interval:
                late = range(max(0, token - window), token)
                weights = np.zeros(len(rows))
                for back, query in enumerate(reversed(late)):
                    turned = asked[head, query] @ at[len(rows) - 1 - back]
                    logits = [turned @ (RAW[head, row] @ at[i]) * 0.3 for i, row in enumerate(rows)]
                    powers = np.where(np.array(rows) <= query, np.exp(logits), 0.0)
                    weights += powers / powers.sum()
                rows[:] = [rows[i] for i in sorted(np.argsort(weights)[-budget:])]
            rows.append(token)
            read = [RAW[head, row] @ at[i] for i, row in enumerate(rows)]
            found = np.array(keys)[0, head]
            np.testing.assert_allclose(*(np.sort(each @ asked[head, 0]) for each in (found, read)), atol=2e-3)
        if token % look == 0:
            assert [sorted(rows) for rows in cache.position[0].tolist()] == held
    assert [sorted(rows) for rows in cache.position[0].tolist()] == held


KEPT = (5, 40)  # tokens that a score never lets go, beside the sinks


def never_let_go(arrivals: Arrivals) -> Mapping[str, Any]:
    place = np.arange(arrivals.start, arrivals.start + arrivals.length)
    return {"chosen": arrivals.full(0.0) + np.isin(place, KEPT).astype(np.float32)}


@pytest.mark.parametrize(("dtype", "bound"), [(mx.float16, 4e-3), (mx.bfloat16, 3e-2)], ids=["fp16", "bf16"])
def test_ten_thousand_evictions_turn_a_key_no_further_from_the_truth(dtype: mx.Dtype, bound: float) -> None:
    """Keys up to 3 are rounded twice to half a unit of the last place: 2e-3 in fp16, 1.6e-2 in bf16."""
    width, budget = 16, 8
    rope = nn.RoPE(width)
    scorer = Scorer(score=lambda held: held.stats["chosen"], init=never_let_go)
    cache = EvictingCache(
        Method(scorer, budget, n_sink=2),
        Options(queries="keys", positions="compact"),
        rotary=rotary_of(rope, width),
    )
    raw = mx.random.normal((1, 1, 10_050, width), key=mx.random.key(4)).astype(dtype)
    found = []
    for token in range(10_050):
        now = raw[:, :, token : token + 1]
        keys, _ = cache.update_and_fetch(rope(now, offset=cache.offset), now)
        if token % 25 == 0:
            mx.eval(cache.state)
        if token in (49, 10_049):
            oldest = mx.argsort(cache.position[0, 0])[:4]
            assert cache.position[0, 0, oldest].tolist() == [0, 1, *KEPT]
            found.append(np.array(keys[0, 0, oldest].astype(mx.float32)))
    np.testing.assert_array_equal(*found)
    wide = np.array(raw[0, 0].astype(mx.float32)).astype(np.float64)
    for place, token in enumerate((0, 1, *KEPT)):
        exact = wide[token] @ matrix(rope, place, width)
        assert np.abs(found[1][place] - exact).max() < bound


class Gradual(nn.Module):  # type: ignore[misc]
    """A module whose angle grows with the square of the position."""

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        return mx.fast.rope(x, D, traditional=False, base=10000.0, scale=1e-3, offset=offset * offset)


@pytest.mark.parametrize("rope", [nn.RoPE(D), nn.RoPE(D, traditional=True), nn.RoPE(D // 2)], ids=str)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_a_turn_back_is_a_turn_the_other_way_to_the_bit(rope: nn.RoPE, dtype: mx.Dtype) -> None:
    rotary = rotary_of(rope, D)
    keys = mx.random.normal((2, 3, 7, D), dtype, key=mx.random.key(1))
    steps = mx.random.randint(0, 5000, (2, 3, 7), key=mx.random.key(2)) * (mx.arange(7) > 1)
    assert mx.array_equal(rotary.turn_back(keys, steps), rotary.turn(keys, -steps)).item()


def planes(pairs: int, tokens: int, sequences: int) -> int:
    """The third side of the block that MLX launches on CUDA (``get_block_dims``), of which 64 are allowed."""
    sides, most, last = [0, 0, 0], (pairs, tokens, sequences), -1
    while last < sum(sides) < 10:
        last = sum(sides)
        for axis, size in enumerate(most):
            if sum(sides) < 10 and size >= 2 ** (sides[axis] + 1):
                sides[axis] += 1
    return int(2 ** sides[2])


@pytest.mark.parametrize("pairs", [1, 4, 8, 12, 16, 32, 64])
def test_many_positions_fit_the_blocks_of_an_nvidia_gpu(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rope, shapes = nn.RoPE(2 * pairs), []
    keys = mx.random.normal((1, 2, 300, 128), key=mx.random.key(2))
    steps = mx.broadcast_to(mx.arange(300), (1, 2, 300))
    here = rotary_of(rope, 128).turn_back(keys, steps)

    def seen(x: mx.array, offset: Any) -> mx.array:
        shapes.append(x.shape)
        return rope(x, offset=offset)

    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert mx.array_equal(rotary_of(seen, 128).turn_back(keys, steps), here).item()
    assert shapes[-1][0] == 600
    asked = [planes(pairs, tokens, batch * -(-heads // 4)) for batch, heads, tokens, _ in shapes]
    assert max(asked) <= 64
    assert planes(8, 1, 600) == 128, "one token each"


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_kernel_turns_back_as_the_module_does(
    name: str, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    vqx_kernels = pytest.importorskip("vqx_kernels")
    rotary, most = rotary_of(ROPES[name](), D), 3000
    both = mx.random.normal((2, 3, 80, D), key=mx.random.key(1)).astype(dtype)
    keys = both[:, :, :40]  # a part of a longer buffer, as a cache holds them
    steps = mx.random.randint(0, most, (2, 3, 40), key=mx.random.key(2)).astype(mx.int32)
    called, loops = [], vqx_kernels.turned
    monkeypatch.setattr(
        vqx_kernels, "turned", lambda *given, **how: called.append(given[0]) or loops(*given, **how)
    )
    monkeypatch.setenv("VQX_DEVICE", "host")
    found = rotary.placed(keys, steps, most)
    assert called == ["host"]
    assert found.dtype == dtype
    # the module rounds an angle of t steps to float32, and the two tables round others; numbers up to 8
    bound = {mx.float32: most * 2**-21, mx.float16: 2**-8, mx.bfloat16: 2**-5}[dtype]
    far = mx.abs(found.astype(mx.float32) - rotary.turn_back(keys, steps).astype(mx.float32))
    assert mx.max(far).item() <= bound


@pytest.mark.parametrize(
    ("rope", "reason"),
    [
        (Gradual(), "turning a key from position 3 by 5 does not give the key at 8"),
        (
            initialize_rope(D, 10000.0, False, {"rope_type": "dynamic", "factor": 2.0}, 2048),
            "an offset for each key",
        ),
        (
            initialize_rope(D, 10000.0, False, {"rope_type": "dynamic", "factor": 2.0}, 2**17),
            "an offset for each key",
        ),
        (nn.Identity(), "an offset for each key"),
    ],
    ids=["gradual", "dynamic", "dynamic and long", "no offset"],
)
def test_a_module_that_cannot_turn_twice_is_refused(rope: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{type(rope).__name__}: .*{reason}.*use positions='absolute'"):
        rotary_of(rope, D)


def test_what_a_module_scales_is_not_scaled_twice() -> None:
    rope = ROPES["yarn"]()
    rotary = rotary_of(rope, D)
    assert mx.min(rotary.scale).item() > 1.1
    key = mx.array(RAW[:1, None, :1])
    twice = rotary.turn(rotary.turn(rope(key, offset=50), mx.full((1, 1, 1), -20)), mx.full((1, 1, 1), 7))
    assert mx.max(mx.abs(twice - rope(key, offset=37))).item() < 1e-4


@pytest.mark.usefixtures("toys")
def test_a_model_lends_its_own_module_layer_by_layer(tiny_llama: Callable[..., nn.Module]) -> None:
    model = tiny_llama(rope_scaling=LLAMA3, rope_theta=500000.0, max_position_embeddings=2048)
    model.layers[1].self_attn.rope = unturned
    caches = make_cache(model, "toy", budget=8, positions="compact")
    rotaries = [cache.plan.rotary for cache in caches]
    assert all(isinstance(rotary, Rotary) for rotary in rotaries)
    assert rotaries[0].rope is model.layers[0].self_attn.rope
    keys = mx.random.normal((1, 2, 3, 16))
    assert mx.array_equal(rotaries[1].turn(keys, mx.full((1, 2, 3), -5)), keys)
    model(mx.zeros((1, 30), mx.int32), cache=caches)
    model(mx.zeros((1, 1), mx.int32), cache=caches)
    assert [cache.offset for cache in caches] == [8, 8]


@pytest.mark.usefixtures("toys")
def test_a_layer_whose_rotary_module_is_not_found_is_refused(
    tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vqx.host.rotaries.ropes_of", lambda model, number: [])
    with pytest.raises(ValueError, match=r"keys of layer 0 of mlx_lm.models.llama.*'absolute'"):
        make_cache(tiny_llama(), "toy", budget=8, positions="compact")


@pytest.mark.usefixtures("toys")
def test_a_module_that_turns_otherwise_than_the_model_is_refused(
    tiny_llama: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = nn.RoPE(16, base=77.0)
    monkeypatch.setattr("vqx.host.rotaries.ropes_of", lambda model, number: [other])
    with pytest.raises(ValueError, match=r"no rotary module was found that turns the keys of layer 0"):
        make_cache(tiny_llama(), "toy", budget=8, positions="compact")
