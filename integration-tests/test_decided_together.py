"""On CUDA, emulated, one launch or two decide for all layers: they keep what each keeps by itself."""

import functools
from functools import partial
from itertools import product
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import vqx_kernels
from vqx import EvictingCache, LayerInfo, Method, Options, kernels
from vqx.build import chain_of, methods_for
from vqx.state.positions import rotary_of
from vqx.state.turn import Turn
from vqx.testing import Shape, stream
from vqx_kernels import testing

LAYERS, PROMPT, TOKENS, WIDTH = 3, 40, 14, 16
METHODS: list[tuple[str, dict[str, Any], bool]] = [
    ("h2o", {}, True),
    ("tova", {}, True),
    ("keyformer", {}, True),
    ("keyformer", {"noise": "logit"}, False),
    ("morphkv", {"window": 4}, True),
    ("morphkv", {"window": 4, "over": "old", "fuse": "max"}, True),
    ("chunkkv", {"window": 4, "chunk": 3}, True),
]
"""With options, and whether cuts of several rows are decided together too."""
CASES = [
    (*method, interval, positions, False)
    for method, interval, positions in product(METHODS, (1, 6), ("absolute", "compact"))
]
CASES += [(*METHODS[number], 1, "absolute", True) for number in (0, 2, 3, 4)]
CASES += [(*METHODS[4], 3, positions, False) for positions in ("absolute", "compact")]


@pytest.mark.parametrize(("method", "options", "cuts", "interval", "positions", "many"), CASES)
def test_one_decides_for_all_what_each_decides_for_itself(
    method: str,
    options: dict[str, Any],
    cuts: bool,
    interval: int,
    positions: str,
    many: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if many:  # for a block: logits are one launch, what becomes of them others
        monkeypatch.setattr(vqx_kernels.attention, "WHOLE", 20)
        monkeypatch.setattr(vqx_kernels.attention, "TOGETHER", 40)
    monkeypatch.setattr(vqx_kernels.tensor, "_tried", lambda _: (True, ""))
    length = PROMPT + TOKENS
    text = [stream("gaussian", number, Shape(length)).astype(mx.float16) for number in range(LAYERS)]
    found, launches = [], []
    for target, together in (("cuda", True), ("cuda", False), ("reference", False)):
        monkeypatch.setattr(kernels, "target", partial(str, target))
        engine = Options(queries="model", interval=interval, positions=positions)
        caches = _caches(method, engine, together, **options)
        with testing.recorded() as asked:
            for first, last in [(0, PROMPT), *((at, at + 1) for at in range(PROMPT, length))]:
                mask = caches[0].make_mask(last - first)
                read = []
                for cache, tokens in zip(caches, text, strict=True):
                    part = tokens.cut(first, last)
                    keys, values = cache.update_and_fetch(part.keys, part.values)
                    if not cache.goes_on(part.queries, keys, 0.25, None):
                        cache.observe(part.queries, keys, 0.25, mask, None)
                    read += [keys, values, *cache.loose()]
                mx.eval(read)
                if first == PROMPT:
                    asked.clear()
            launches.append([one.name for _, one in asked])
            found.append([_kept(cache) for cache in caches])
    for one, apart, reference in zip(*found, strict=True):
        for array, *same in zip(one[:2], apart[:2], reference[:2], strict=True):
            np.testing.assert_array_equal(array, same[0])
            np.testing.assert_array_equal(array, same[1])
        if positions == "absolute" or "noise" not in options:
            np.testing.assert_array_equal(one[2], apart[2])
        # sums of weights are rounded otherwise
        np.testing.assert_allclose(one[2], apart[2], rtol=1e-5)
        np.testing.assert_allclose(one[2], reference[2], rtol=1e-3)
    of_all, of_each, _ = launches
    if interval == 1:
        assert len(of_all) < len(of_each)
    assert any(f"_{LAYERS}_" in name for name in of_all) == (interval == 1 or cuts)
    assert any(f"vqx_lowest_{LAYERS}_" in name for name in of_all) == many
    assert not any(f"_{LAYERS}_" in name for name in of_each)


@pytest.mark.parametrize("interval", [1, 6])
@pytest.mark.parametrize("method", ["streaming-llm", "h2o", "tova", "keyformer", "morphkv"])
def test_in_a_batch_one_decides_for_all_what_each_sequence_decides_alone(
    method: str, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences that are due at different tokens, of which the shorter one has padding behind its rows."""
    options = {"morphkv": {"window": 4}, "keyformer": {"anneal_steps": 0}}.get(method, {})
    monkeypatch.setattr(vqx_kernels.tensor, "_tried", lambda _: (True, ""))
    engine, prompts = Options(queries="model", interval=interval), (PROMPT, PROMPT - 3)
    shape = Shape(PROMPT + 2 * TOKENS)
    text = [
        [
            stream("gaussian", 7 * member + layer, shape).astype(mx.float16).lanes(batch=slice(0, 1))
            for layer in range(LAYERS)
        ]
        for member in range(2)
    ]

    def read(caches: list[Any], ends: list[int], members: list[int], length: int) -> None:
        mask, found = caches[0].make_mask(length), []
        for layer, cache in enumerate(caches):
            parts = [
                text[member][layer].cut(end, end + length) for member, end in zip(members, ends, strict=True)
            ]
            queries, keys, values = (mx.concatenate([*each]) for each in zip(*parts, strict=True))
            held = cache.update_and_fetch(keys, values)
            shown = cache.goes_on(queries, held[0], 0.25, None, mask if length == 1 else None)
            if not shown and method != "streaming-llm":
                cache.observe(queries, held[0], 0.25, mask, None)
            found += [*held, *cache.loose()]
        mx.eval(found)

    found, names = [], []
    for target, together in (("cuda", True), ("cuda", False), ("reference", False)):
        monkeypatch.setattr(kernels, "target", partial(str, target))
        each = [_caches(method, engine, together, **options) for _ in prompts]
        with testing.recorded() as asked:
            for member, (caches, prompt) in enumerate(zip(each, prompts, strict=True)):
                read(caches, [0], [member], prompt)
                for number in range(2 - 2 * member):
                    read(caches, [prompt + number], [member], 1)
            ends = [PROMPT + 2, PROMPT - 3]
            asked.clear()
            if together:
                batches = [first.merge([first, second]) for first, second in zip(*each, strict=True)]
                for number in range(TOKENS):
                    read(batches, [end + number for end in ends], [0, 1], 1)
                names = [one.name for _, one in asked]
                each = [[batch.extract(member) for batch in batches] for member in (0, 1)]
            else:
                for member, caches in enumerate(each):
                    for number in range(TOKENS):
                        read(caches, [ends[member] + number], [member], 1)
            found.append([_kept(cache) for caches in each for cache in caches])
    # without a query all that is asked of all layers is a cut's rows
    asks = interval > 1 or method != "streaming-llm"
    assert any(f"_{LAYERS}_" in name for name in names) == asks, "they did not decide together"
    for one, alone, reference in zip(*found, strict=True):
        for array, *same in zip(one[:2], alone[:2], reference[:2], strict=True):
            np.testing.assert_array_equal(array, same[0])
            np.testing.assert_array_equal(array, same[1])
        np.testing.assert_allclose(one[2], alone[2], rtol=1e-4)


@functools.cache
def _methods(method: str, **options: Any) -> list[Method]:
    infos = [LayerInfo(number, "model") for number in range(LAYERS)]
    return [*methods_for(chain_of(method), {"budget": 24, **options}, infos)]


def _caches(method: str, engine: Options, together: bool, **options: Any) -> list[EvictingCache]:
    methods = _methods(method, **options)
    rotary, turn = rotary_of(nn.RoPE(WIDTH), WIDTH) if engine.positions == "compact" else None, Turn()
    caches = [EvictingCache(own, engine, rotary=rotary, number=n) for n, own in enumerate(methods)]
    for cache in caches if together else ():
        cache.turn = turn
        turn.join(cache)
    return caches


def _kept(cache: EvictingCache) -> tuple[Any, ...]:
    layer = cache.layer
    assert layer is not None
    position, rows = np.array(layer.rows.position), np.array(layer.rows.keys)[:, :, : layer.size]
    order = np.argsort(position, axis=2)
    columns = [np.take_along_axis(np.array(each), order, 2) for each in layer.rows.columns.values()]
    kept = np.take_along_axis(rows, order[..., None], 2)
    return np.take_along_axis(position, order, 2), kept, np.array(columns, float)
