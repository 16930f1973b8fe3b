"""Faults that users of other caches reported, as expectations of ours, for every method.

Most drive a cache directly and look at what each query may attend to: values are one-hot in the token's
position and attention's queries are zero, so that its output is the uniform distribution over the positions
that a query sees. The queries that the cache is shown for its scores are not zero.
"""

from collections.abc import Callable
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.rope_utils import initialize_rope
from subjects import (
    NATURES,
    REPRESENTATIVES,
    cache_of,
    caches_of,
    check_full,
    default_caches,
    method,
    through,
)
from vqx import EvictingCache, Options
from vqx.testing import Shape

BUDGET, SINKS = 24, 4
HEADS, WIDTH = 2, 128

ENGINES = {
    "model": Options(queries="model"),
    "model token": Options(queries="model", cadence="token"),
    "keys token": Options(queries="keys", cadence="token"),
    "centred keys": Options(queries="centred-keys"),
}

SHAPE = Shape(batch=1, heads=HEADS, group=1, width=WIDTH, value_width=WIDTH)


class Seeing:
    """Feeds random tokens to a cache and reads off what each of them sees."""

    def __init__(
        self, cache: EvictingCache, keys: mx.array | None = None, dtype: mx.Dtype = mx.float32
    ) -> None:
        self.cache, self.dtype, self.seen = cache, dtype, 0
        draw = mx.random.normal((1, HEADS, WIDTH, WIDTH), key=mx.random.key(3))
        self.keys = draw if keys is None else keys

    def tokens(self, count: int) -> list[list[dict[int, float]]]:
        """One forward: for each head and each of its queries the positions seen, with their weights."""
        span = slice(self.seen, self.seen + count)
        keys = self.keys[..., span, :].astype(self.dtype)
        values = mx.broadcast_to(mx.eye(WIDTH, dtype=self.dtype)[span], (1, HEADS, count, WIDTH))
        mask = self.cache.make_mask(count)
        held, stored = self.cache.update_and_fetch(keys, values)
        if self.cache.plan.options.queries == "model":
            self.cache.observe(keys[:, :, ::-1], held, WIDTH**-0.5, mask, None)
        blank = mx.zeros((1, HEADS, count, WIDTH), self.dtype)
        seen = [
            mx.fast.scaled_dot_product_attention(blank[:, :, first:last], held, stored, scale=1.0, mask=tile)
            for first, last, tile in self.cache.masks(mask, HEADS, count)
        ]
        weights = np.array(mx.concatenate(seen, axis=2).astype(mx.float32))
        assert held.dtype == stored.dtype == self.dtype
        assert np.isfinite(weights).all()
        self.seen += count
        return [[{int(p): row[p] for p in np.flatnonzero(row > 1e-6)} for row in head] for head in weights[0]]


def check_sight(
    heads: list[list[dict[int, float]]], start: int, *, most: int, tolerance: float = 1e-3
) -> None:
    """Each query sees the sinks, itself, nothing later, nothing twice, and no row that nobody wrote.

    ``most`` rows are for each head on average, since heads may share them.
    """
    for head in heads:
        for at, seen in enumerate(head, start):
            assert max(seen) == at, f"token {at} sees token {max(seen)}"
            assert set(range(min(SINKS, at + 1))) <= set(seen), f"token {at} does not see the sinks"
            assert abs(sum(seen.values()) - 1) < tolerance, f"token {at} sees rows that nobody wrote"
            assert max(seen.values()) < 1.01 * min(seen.values()), f"token {at} sees a token twice"
    for at, seen in enumerate(zip(*heads, strict=True), start):
        rows = sum(map(len, seen))
        assert rows <= most * len(heads), f"token {at} sees {rows} rows in {len(heads)} heads"


@through(ENGINES, merging=False)
@pytest.mark.parametrize("count", [2, 10, 40])
def test_tokens_that_arrive_together_at_a_full_cache_see_the_sinks_and_their_own_past(
    method: str, engine: Options, count: int
) -> None:
    looking = Seeing(cache_of(method, engine, SHAPE, budget=BUDGET, n_sink=SINKS))
    for _ in range(40):
        looking.tokens(1)
    heads = looking.tokens(count)
    check_sight(heads, 40, most=BUDGET + count)
    for head in heads:
        for at, seen in enumerate(head, 40):
            assert set(range(40, at + 1)) <= set(seen), f"token {at} misses one of its own turn"
    check_sight(looking.tokens(1), 40 + count, most=BUDGET + 1)


@through(ENGINES, merging=False)
def test_turns_of_a_chat_leave_no_ghosts(method: str, engine: Options) -> None:
    looking = Seeing(cache_of(method, engine, SHAPE, budget=BUDGET, n_sink=SINKS))
    for count in (30, 1, 1, 5, 1, 1, 1, 17, 1, 1, 2, 1):
        start = looking.seen
        heads = looking.tokens(count)
        check_sight(heads, start, most=BUDGET + count)
    assert looking.cache.tokens_kept == BUDGET < looking.seen == 62


@through(ENGINES, merging=False)
def test_a_system_prompt_as_long_as_the_sinks_is_seen_to_the_end(method: str, engine: Options) -> None:
    looking = Seeing(cache_of(method, engine, SHAPE, budget=64, n_sink=30))
    sinks = looking.cache.plan.method.n_sink
    assert sinks in (4, 30), "the example's, where a method has no such option"
    for count in (50, 1, 1, 20, 1, 30, 1, 1):
        start = looking.seen
        for head in looking.tokens(count):
            for at, seen in enumerate(head, start):
                assert set(range(min(sinks, at + 1))) <= set(seen), f"token {at} misses the system prompt"
    assert looking.cache.tokens_kept == 64 < looking.cache.tokens_seen


@method
def test_six_turns_of_a_chat_stay_within_the_budget(method: str, tiny: Any) -> None:
    caches = caches_of(tiny.model, method, budget=BUDGET, n_sink=SINKS)
    seen = 0
    for turn, count in enumerate((30, 5, 1, 17, 2, 40)):
        assert len(answer(tiny.model, some_tokens(count, seed=turn), caches)) == ANSWER
        assert all(cache.tokens_seen >= seen + count + ANSWER - 1 for cache in caches)
        seen = caches[0].offset
        check_full(caches, BUDGET)
        assert all(cache.nbytes - cache.bookkeeping_bytes <= ROW_BYTES * (BUDGET + 256) for cache in caches)
    assert mx.all(mx.isfinite(tiny.read(caches, mx.array([[5, 6, 7]]), [1, 1, 1]))).item()


@method
def test_the_step_of_a_prompt_does_not_change_a_text_that_fits(method: str, tiny: Any) -> None:
    prompt = some_tokens(16, seed=1)
    own = answer(tiny.model, prompt, tiny.plain())
    for step in (5, 16, 2048):
        caches = caches_of(tiny.model, method, budget=BUDGET, n_sink=SINKS)
        assert answer(tiny.model, prompt, caches, prefill_step_size=step) == own


@method
def test_every_step_of_a_prompt_that_does_not_fit_finishes(method: str, tiny: Any) -> None:
    for step in (5, 16, 2048):
        caches = caches_of(tiny.model, method, budget=BUDGET, n_sink=SINKS)
        assert len(answer(tiny.model, some_tokens(60, seed=1), caches, prefill_step_size=step)) == ANSWER
        check_full(caches, BUDGET)


@method
def test_a_fresh_cache_answers_what_servers_ask_before_the_first_token(method: str, tiny: Any) -> None:
    for cache in caches_of(tiny.model, method, budget=BUDGET):
        assert cache.empty()
        assert cache.nbytes == cache.size() == cache.offset == 0
        mx.eval(cache.state)


@method
def test_a_layer_that_reads_its_neighbours_rows_finds_them_all(method: str, tiny: Any) -> None:
    caches = caches_of(tiny.model, method, budget=BUDGET)
    tiny.read(caches, mx.array([some_tokens(40, seed=1)]), [1] * 40)
    for cache in caches:
        keys, values = cache.keys_and_values()
        assert keys.shape == values.shape == (1, keys.shape[1], keys.shape[2], 16)
        assert keys.shape[1] * keys.shape[2] == 2 * (cache.plan.method.budget + 1)


@through(ENGINES, merging=False)
def test_the_same_numbers_in_another_dtype_keep_the_same_tokens(method: str, engine: Options) -> None:
    keys = mx.random.normal((1, HEADS, 90, WIDTH), key=mx.random.key(5)).astype(mx.bfloat16)
    kept = []
    for dtype in (mx.float32, mx.bfloat16, mx.float16):
        looking = Seeing(cache_of(method, engine, SHAPE, budget=BUDGET, n_sink=SINKS), keys, dtype)
        for count in (30, *[1] * 59):
            start = looking.seen
            heads = looking.tokens(count)
            check_sight(heads, start, most=BUDGET + count, tolerance=2e-2)
        kept.append([sorted(head[-1]) for head in heads])
    assert kept[0] == kept[1] == kept[2]


@through(ENGINES, merging=False)
def test_huge_keys_in_half_precision_stay_finite(method: str, engine: Options) -> None:
    keys = 200 * mx.random.normal((1, HEADS, 90, WIDTH), key=mx.random.key(5))
    looking = Seeing(cache_of(method, engine, SHAPE, budget=BUDGET, n_sink=SINKS), keys, mx.float16)
    for count in (30, *[1] * 59):
        start = looking.seen
        check_sight(looking.tokens(count), start, most=BUDGET + count, tolerance=2e-2)


@method
def test_budgets_that_differ_by_layer_work_together(method: str, tiny: Any) -> None:
    tokens = mx.array([some_tokens(55, seed=1)])
    alike = caches_of(tiny.model, method, budget=24, n_sink=SINKS)
    if NATURES[method].shares_layers or any(cache.plan.method.budget != 24 for cache in alike):
        with pytest.raises(ValueError, match="sets the budgets of the layers itself"):
            caches_of(tiny.model, method, budget=[14, 24, 32], n_sink=SINKS)
        return
    for lengths in ([*[1] * 50, 5], [16, 16, 16, 2, 5]):
        caches = caches_of(tiny.model, method, budget=[14, 24, 32], n_sink=SINKS)
        assert mx.all(mx.isfinite(tiny.read(caches, tokens, lengths))).item()
        assert [cache.tokens_kept for cache in caches] == [14, 24, 32]


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

ROTARIES: dict[str, Callable[[], Any]] = {
    "plain": lambda: initialize_rope(64, 10000.0, False),
    "another base": lambda: initialize_rope(64, 1e6, False),
    "interleaved": lambda: initialize_rope(64, 10000.0, True),
    "llama3": lambda: initialize_rope(64, 10000.0, False, LLAMA3, 4096),
    "partial": lambda: initialize_rope(16, 10000.0, False),
}


FLAVOURS = [
    (method, rotary, positions)
    for method, nature in NATURES.items()
    for rotary in ROTARIES
    for positions in ("absolute", "compact")
    if nature.allows(Options(queries="keys", positions=positions))
    and (REPRESENTATIVES[nature] == method or (rotary, positions) == ("llama3", "compact"))
]


@pytest.mark.parametrize(("method", "rotary", "positions"), FLAVOURS)
def test_after_an_eviction_rows_stand_where_the_next_query_takes_them_to_be(
    method: str, rotary: str, positions: str, make_llama: Callable[..., Any]
) -> None:
    """Keys are made as the model would, rotated for the cache's offset. In every flavour of embedding each
    row then stands at its own position or, where positions close up, at its rank.
    """
    model, rope = make_llama(num_hidden_layers=1, head_dim=64), ROTARIES[rotary]()
    model.layers[0].self_attn.rope = rope
    options = {"budget": 16, "n_sink": SINKS, "queries": "keys", "positions": positions}
    (cache,) = caches_of(model, method, **options)
    raw = mx.random.normal((1, 2, 60, 64), key=mx.random.key(8))
    for at in range(60):
        values = mx.full((1, 2, 1, 1), float(at))
        keys, values = cache.update_and_fetch(rope(raw[:, :, at : at + 1], offset=cache.offset), values)
    assert cache.size() == 17
    for head in range(2):
        tokens = cache.position[0, head].tolist()
        places = tokens if positions == "absolute" else [sorted(tokens).index(token) for token in tokens]
        for row, (token, place) in enumerate(zip(tokens, places, strict=True)):
            expected = rope(raw[:, head : head + 1, token : token + 1], offset=place)
            # compact positions turn a key twice, in float32
            assert mx.allclose(keys[0, head, row], expected[0, 0, 0], rtol=0, atol=1e-4).item()
        assert set(range(SINKS)) <= set(tokens)
        assert places[tokens.index(59)] == max(places) == (59 if positions == "absolute" else 16)


@method
def test_settings_that_cannot_work_are_refused_when_built(method: str, tiny: Any) -> None:
    for budget, n_sink in ((4, 8), (4, 4), (0, 0), (-3, 0), (8, -1)):
        options = {**(vqx.load(method).example or {}), "budget": budget, "n_sink": n_sink}
        with pytest.raises(ValueError, match=r"budget|n_sink"):
            vqx.make_cache(tiny.model, method, **options)


@pytest.mark.parametrize("count", [1, 24, 25])
@method
def test_texts_as_short_as_a_setting_are_read_as_by_the_full_cache(
    method: str, count: int, tiny: Any
) -> None:
    tokens = mx.array([some_tokens(30, seed=count)])
    single = [count, *[1] * (30 - count)]
    caches = caches_of(tiny.model, method, budget=BUDGET, n_sink=SINKS)
    found, own = tiny.read(caches, tokens, single), tiny.read(tiny.plain(), tokens, single)
    exact = max(min(cache.plan.method.budget for cache in caches) + 1, count)
    assert mx.array_equal(found[:, :exact], own[:, :exact]).item()


@through(ENGINES, merging=False)
def test_equal_keys_leave_sinks_and_the_newest_token_and_two_runs_agree(method: str, engine: Options) -> None:
    runs, alike = [], mx.ones((1, HEADS, 100, WIDTH))
    for _ in range(2):
        looking = Seeing(cache_of(method, engine, SHAPE, budget=BUDGET, n_sink=SINKS), alike)
        for at in range(100):
            heads = looking.tokens(1)
            check_sight(heads, at, most=BUDGET + 1)
            if at:
                assert all(at - 1 in head[0] for head in heads)
        runs.append(heads)
    assert runs[0] == runs[1]


@through(ENGINES, merging=False)
def test_the_kept_set_moves_on_and_what_went_never_returns(method: str, engine: Options) -> None:
    looking, before = Seeing(cache_of(method, engine, SHAPE, budget=BUDGET, n_sink=SINKS)), [set(), set()]
    for at in range(100):
        heads = looking.tokens(1)
        check_sight(heads, at, most=BUDGET + 1)
        now = [set(head[0]) for head in heads]
        for earlier, later in zip(before, now, strict=True):
            assert later - {at} <= earlier, f"a token that was evicted is back at token {at}"
        before = now
    for kept in now:
        assert len(kept & set(range(BUDGET))) < BUDGET - 2, "the kept set is frozen at the first tokens"


PROSE = (
    "Bread needs four things: flour, water, salt and time. The flour brings starch and protein. When water"
    " is added, the proteins join into long elastic strands, which the baker calls gluten. Yeast lives on the"
    " sugar in the dough and gives off gas, and the gluten holds the gas in small bubbles, so that the dough"
    " rises. Salt slows the yeast down and makes the strands stronger."
)


@method
def test_the_first_evictions_cost_something_and_are_no_cliff(
    method: str, embedded: Any, prose_losses: tuple[mx.array, mx.array]
) -> None:
    tokens, full = prose_losses
    budget = 40
    caches = default_caches(embedded.model, method, budget)
    losses = losses_of(embedded.read(caches, tokens, [budget, *[1] * (tokens.shape[1] - budget)]), tokens)
    assert mx.array_equal(losses[:budget], full[:budget]).item()
    growth = (losses[budget:].mean() - full[budget:].mean()).item()
    check_full(caches, budget)
    assert growth != 0.0
    assert growth < 0.7
    assert mx.sort(losses[budget:])[int(0.95 * (losses.size - budget))].item() < 12


@pytest.fixture(scope="module")
def prose_losses(embedded: Any) -> tuple[mx.array, mx.array]:
    """68 tokens of prose, and the loss of each but the first under the full cache."""
    tokens = mx.array([embedded.tokenizer.encode(PROSE)[:68]])
    lengths = [40, *[1] * 28]
    return tokens, losses_of(embedded.read(embedded.plain(), tokens, lengths), tokens)


def losses_of(logits: mx.array, tokens: mx.array) -> mx.array:
    return nn.losses.cross_entropy(logits[0, :-1], tokens[0, 1:])


ANSWER = 6
ROW_BYTES = 2 * 2 * 16 * 4  # keys and values of the tiny model: two heads of 16 in float32


def some_tokens(count: int, *, seed: int) -> list[int]:
    tokens: list[int] = mx.random.randint(0, 97, (count,), key=mx.random.key(seed)).tolist()
    return tokens


def answer(model: Any, prompt: list[int], caches: list[Any], **options: Any) -> list[int]:
    step = generate_step(mx.array(prompt), model, max_tokens=ANSWER, prompt_cache=caches, **options)
    return [int(token) for token, _ in step]
