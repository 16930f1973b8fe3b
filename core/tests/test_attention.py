"""The attention of a block of queries against sums in float64, one query after the other."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from vqx.state import attention
from vqx.state.attention import Block

B, H, G, S, N, D = 2, 3, 2, 7, 15, 8
START = 40
CLOSE = {"rtol": 0, "atol": 1e-5}  # weights are at most 1, in float32
Array = np.ndarray[Any, Any]


def block(*, seed: int = 0, dtype: mx.Dtype = mx.float32, length: int = S, **changes: Any) -> Block:
    """Queries at START..., the rows of the block among older ones, in any slot order."""
    random = np.random.default_rng(seed)
    queries = random.normal(size=(B, H, G, length, D)) * 2
    keys = random.normal(size=(B, H, N, D)) * 2
    position = np.empty((B, H, N), np.int32)
    for lane in np.ndindex(B, H):
        old = random.choice(START, N - length, replace=False)
        position[lane] = random.permutation([*old, *range(START, START + length)])
    made = Block(
        mx.array(queries.astype(np.float32)).astype(dtype),
        mx.array(keys.astype(np.float32)).astype(dtype),
        mx.array(position),
        start=START,
        scale=0.3,
    )
    return made._replace(**changes)


def wide(array: mx.array) -> Array:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def logits_of(block: Block) -> Array:
    return np.einsum("bhgsd,bhnd->bhgsn", wide(block.queries), wide(block.keys)) * block.scale


def softmax(logits: Array, seen: Array, sinks: mx.array | None = None) -> Array:
    """Weights ``[B, H, G, S, n]`` over the rows seen, a learned sink per query head in the denominator."""
    powers = np.where(seen, np.exp(logits), 0.0)
    total = powers.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(wide(sinks)).reshape(1, H, -1, 1, 1)
    return powers / total


def causal(block: Block) -> Array:
    query = block.start + np.arange(block.length)
    return np.array(block.position)[:, :, None, None, :] <= query[:, None]


def summed(weights: Array, decay: float = 1.0) -> Array:
    """What a statistic has after the block, if each query's share is added in turn."""
    total = np.zeros((B, H, N))
    for query in range(weights.shape[3]):
        total = total * decay + weights[:, :, :, query].mean(axis=2)
    return total


@pytest.fixture(params=[2**23, 1, 2 * B * H * G * N, 3 * B * H * G * N + 1], ids=["whole", "1", "2", "3"])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of all queries, of one, two and three."""
    monkeypatch.setattr(attention, "TILE", request.param)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("decay", [1.0, 0.9, 0.0])
def test_mass_is_the_sum_over_queries_of_the_group_mean(decay: float) -> None:
    seen = block()
    expected = summed(softmax(logits_of(seen), causal(seen)), decay)
    np.testing.assert_allclose(np.array(seen.mass(decay=decay)), expected, **CLOSE)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_16_bit_rows_are_weighed_in_32_bits(dtype: mx.Dtype) -> None:
    seen = block(dtype=dtype)
    assert seen.mass().dtype == mx.float32
    assert seen.weights().dtype == mx.float32
    expected = summed(softmax(logits_of(seen), causal(seen)))
    np.testing.assert_allclose(np.array(seen.mass()), expected, **CLOSE)


@pytest.mark.usefixtures("tile")
def test_noise_and_temperature_stand_inside_the_softmax() -> None:
    seen = block(generated=5)
    noise = np.random.default_rng(1).normal(size=(B, H, N)).astype(np.float32)
    mass = seen.mass(noise=mx.array(noise), temperature=lambda generated: 1.0 + 0.1 * generated)
    logits = (logits_of(seen) + noise[:, :, None, None]) / 1.5
    np.testing.assert_allclose(np.array(mass), summed(softmax(logits, causal(seen))), **CLOSE)


@pytest.mark.usefixtures("tile")
def test_learned_sinks_take_their_share() -> None:
    sinks = mx.array(np.linspace(0, 6, H * G).astype(np.float32))
    seen = block(sinks=sinks)
    weights = softmax(logits_of(seen), causal(seen), sinks)
    assert weights.sum(-1).mean() < 0.9
    np.testing.assert_allclose(np.array(seen.mass()), summed(weights), **CLOSE)
    np.testing.assert_allclose(np.array(seen.weights()), weights, **CLOSE)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize(
    "shape", [(S, N), (1, N), (1, S, N), (H * G, S, N), (1, 1, S, N), (B, 1, S, N), (B, H * G, S, N)], ids=str
)
@pytest.mark.parametrize("kind", ["booleans", "numbers"])
def test_an_array_mask_hides_or_adds_whatever_it_broadcasts_over(shape: tuple[int, ...], kind: str) -> None:
    random = np.random.default_rng(2)
    mask = random.normal(size=shape).astype(np.float32)
    each = np.broadcast_to(mask, (B, H * G, S, N)).reshape(B, H, G, S, N)
    if kind == "booleans":
        seen = block(mask=mx.array(mask > 0))
        weights = softmax(logits_of(seen), each > 0)
    else:
        seen = block(mask=mx.array(mask))
        weights = softmax(logits_of(seen) + each, np.ones_like(each, bool))
    np.testing.assert_allclose(np.array(seen.mass()), summed(weights), **CLOSE)
    np.testing.assert_allclose(np.array(seen.weights()), weights, **CLOSE)


def test_numbers_in_16_bits_may_hide_with_minus_infinity() -> None:
    hidden = np.arange(N) < N // 2
    mask = mx.where(mx.array(hidden), mx.array(-mx.inf, mx.float16), mx.array(0.0, mx.float16))
    seen = block(mask=mx.broadcast_to(mask, (S, N)))
    weights = softmax(logits_of(seen), ~hidden)
    np.testing.assert_allclose(np.array(seen.weights()), weights, **CLOSE)


@pytest.mark.usefixtures("tile")
def test_without_a_mask_every_query_sees_every_row() -> None:
    seen = block(mask=None)
    weights = softmax(logits_of(seen), np.ones((1, 1, 1, 1, N), bool))
    np.testing.assert_allclose(np.array(seen.mass()), summed(weights), **CLOSE)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("mask", ["causal", "array"])
def test_a_query_can_be_kept_from_its_own_row(mask: str) -> None:
    seen = block()
    query = START + np.arange(S)[:, None]
    others = np.array(seen.position)[:, :, None, None] < query
    if mask == "array":
        chosen = np.random.default_rng(3).random((S, N)) > 0.3
        seen, others = seen._replace(mask=mx.array(chosen)), others & chosen
    weights = softmax(logits_of(seen), others)
    np.testing.assert_allclose(np.array(seen.mass(itself=False)), summed(weights), **CLOSE)


def test_the_very_first_query_has_no_row_but_its_own() -> None:
    made = block()
    position = mx.broadcast_to(mx.arange(S, dtype=mx.int32), (B, H, S))
    seen = made._replace(keys=made.keys[:, :, :S], position=position, start=0)
    first = seen._replace(queries=seen.queries[..., :1, :])
    np.testing.assert_array_equal(
        np.array(first.mass(itself=False)), np.eye(1, S)[None].repeat(B, 0).repeat(H, 1)
    )
    total = np.array(seen.mass(itself=False)).sum(-1)
    np.testing.assert_allclose(total, np.full((B, H), S), rtol=1e-5)
    assert np.array(seen.mass(itself=False))[..., -1].max() == 0.0


@pytest.mark.parametrize("itself", [True, False])
def test_sightings_count_the_queries_that_could_see_a_row(itself: bool) -> None:
    for start in (START, 0):
        seen = block()
        if start == 0:
            arrived = mx.broadcast_to(mx.arange(N, dtype=mx.int32), (B, H, N))
            seen = seen._replace(position=arrived, start=0, queries=mx.zeros((B, H, G, N, D)))
        query = start + np.arange(seen.length)[:, None]
        row = np.array(seen.position)[:, :, None]
        could = row <= query if itself else (row < query) | ((row == 0) & (query == 0))
        np.testing.assert_array_equal(np.array(seen.sightings(itself=itself)), could.sum(axis=2))


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("length", [1, S])
def test_weights_are_causal_unless_told_otherwise(length: int) -> None:
    seen = block(length=length, mask="causal")
    expected = softmax(logits_of(seen), causal(seen))
    np.testing.assert_allclose(np.array(seen.weights()), expected, **CLOSE)
    everything = softmax(logits_of(seen), np.ones((1, 1, 1, 1, N), bool))
    np.testing.assert_allclose(np.array(seen.weights(causal=False)), everything, **CLOSE)


def test_old_rows_share_the_weight_among_themselves() -> None:
    seen = block()
    old = np.array(seen.position)[:, :, None, None] <= START + S - 1 - 9
    assert (np.array(seen.position) > START + S - 1 - 9).sum() > B * H * S  # the 9 newest: the block and more
    weights = np.array(seen.weights(old=9))
    np.testing.assert_allclose(weights, softmax(logits_of(seen), old), **CLOSE)
    assert np.all(weights[~np.broadcast_to(old, weights.shape)] == 0.0)


def test_where_no_row_is_old_no_row_gets_weight() -> None:
    assert mx.max(mx.abs(block().weights(old=START + S))).item() == 0.0


@pytest.mark.parametrize("fuse", ["sum", "max"])
def test_fused_logits_are_those_of_one_query_head_per_group(fuse: Any) -> None:
    seen = block()
    expected = softmax(getattr(np, fuse)(logits_of(seen), axis=2, keepdims=True), causal(seen))
    weights = np.array(seen.weights(fuse_logits=fuse))
    assert weights.shape == (B, H, 1, S, N)
    np.testing.assert_allclose(weights, expected, **CLOSE)


def test_fused_logits_fuse_learned_sinks_alike() -> None:
    sinks = mx.array(np.linspace(-1, 1, H * G).astype(np.float32))
    seen = block(sinks=sinks)
    fused = softmax(logits_of(seen).sum(axis=2, keepdims=True), causal(seen), sinks.reshape(H, G).sum(axis=1))
    np.testing.assert_allclose(np.array(seen.weights(fuse_logits="sum")), fused, **CLOSE)


def test_logits_far_beyond_16_bits_stay_finite() -> None:
    made = block(dtype=mx.float16)
    seen = made._replace(keys=made.keys * 200, queries=made.queries * 200)
    assert mx.abs(seen.queries @ seen.keys[:, :, None].swapaxes(-1, -2)).max().item() == mx.inf
    for weights in (seen.mass(), seen.weights(), seen.weights(old=3)):
        assert mx.all(mx.isfinite(weights)).item()


def test_a_tile_bounds_the_logits_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    monkeypatch.setattr(attention, "TILE", 2 * B * H * G * N)
    of_block = Block._logits

    def counted(self: Block, first: int, last: int) -> mx.array:
        held.append(last - first)
        return of_block(self, first, last)

    monkeypatch.setattr(Block, "_logits", counted)
    block().mass()
    assert held == [2, 2, 2, 1]


def test_keys_of_more_heads_than_are_held_are_read_by_their_own_queries() -> None:
    seen = block()
    keys = mx.repeat(seen.keys, G, axis=1) + mx.random.normal((B, H * G, N, D), key=mx.random.key(1))
    logits = np.einsum("bhgsd,bhgnd->bhgsn", wide(seen.queries), wide(keys).reshape(B, H, G, N, D)) * 0.3
    expected = softmax(logits, causal(seen))
    made = seen._replace(keys=keys)
    np.testing.assert_allclose(np.array(made.weights()), expected, **CLOSE)
    np.testing.assert_allclose(np.array(made.mass()), summed(expected), **CLOSE)


def test_logits_at_hand_give_the_weights_that_queries_and_keys_gave() -> None:
    numbers = mx.random.normal((B, H * G, S, N), key=mx.random.key(1))
    numbers = mx.where(
        mx.array(causal(block())).reshape(B, H, 1, S, N), numbers.reshape(B, H, G, S, N), -mx.inf
    )
    seen = block(mask=numbers.reshape(B, H * G, S, N))
    known = seen._replace(queries=seen.shown(3), keys=None, mask="causal", start=START + S - 3)
    # a product of fewer queries may add up in another order
    np.testing.assert_allclose(np.array(known.weights()), np.array(seen.weights()[..., -3:, :]), atol=1e-6)


@pytest.mark.parametrize("numbers", [False, True])
def test_a_query_that_sees_no_row_has_no_weight_to_give(numbers: bool) -> None:
    mask = mx.arange(S)[:, None] > mx.zeros((S, N), mx.int32)
    seen = block(mask=mx.where(mask, 0.0, -mx.inf) if numbers else mask)
    expected = softmax(logits_of(seen), np.ones((S, N), bool))
    expected[:, :, :, 0] = 0.0
    np.testing.assert_allclose(np.array(seen.weights()), expected, **CLOSE)
    np.testing.assert_allclose(np.array(seen.mass()), summed(expected), **CLOSE)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("group", ["mean", "max"])
@pytest.mark.parametrize("queries", ["mean", "max"])
@pytest.mark.parametrize("how", [{}, {"old": 4}, {"causal": False}, {"fuse_logits": "max"}], ids=str)
def test_weights_are_fused_tile_by_tile(group: Any, queries: Any, how: dict[str, Any]) -> None:
    for seen in (block(), block(mask=mx.array(np.random.default_rng(3).normal(size=(S, N)) > -1))):
        each = getattr(np.array(seen.weights(**how)), group)(axis=2)
        expected = getattr(each, queries)(axis=2)
        np.testing.assert_allclose(
            np.array(seen.fused(group=group, queries=queries, **how)), expected, **CLOSE
        )


@pytest.mark.parametrize("itself", [True, False])
def test_rows_that_no_query_of_a_tile_sees_are_left_out(
    itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mass of a chunk, in tiles, with and without the knowledge that its own rows stand last."""
    monkeypatch.setattr("vqx.state.attention.TILE", 2 * 4 * 60 * 5)
    drawn = [
        mx.random.normal(shape, key=mx.random.key(n))
        for n, shape in enumerate([(2, 2, 2, 23, 8), (2, 2, 60, 8)])
    ]
    position = mx.broadcast_to(mx.concatenate([mx.arange(0, 74, 2), mx.arange(80, 103)]), (2, 2, 60))
    block = Block(drawn[0], drawn[1], position.astype(mx.int32), 80, 0.3)
    noise = mx.random.normal((2, 2, 60), key=mx.random.key(5))
    for more in ({}, {"noise": noise, "temperature": lambda generated: 1.5}, {"decay": 0.9}):
        plain, fewer = (b.mass(itself=itself, **more) for b in (block, block._replace(ordered=True)))
        np.testing.assert_allclose(np.array(plain), np.array(fewer), rtol=2e-6, atol=1e-7)
