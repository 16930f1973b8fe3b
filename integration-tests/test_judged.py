"""A query whose attention is known is not held: scores made of it stand in its place, and change nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from vqx.settings import settings
from vqx.state.layer import Plan

LENGTHS = (40, 1, 1, 1, 1, 1, 1, 1, 5, 1, 1, 1)
SETTINGS = (
    "tova",
    "tova:heads=each",
    "tova:positions=compact",
    "snapkv:window=1",
    "critical:window=1",
)


def made(model: Any, setting: str) -> list[Any]:
    ((method, options),) = settings([setting])
    return vqx.make_cache(model, method, **{"budget": 24, **options})


def read(model: Any, caches: Sequence[Any], lengths: Sequence[int], start: int = 0) -> list[mx.array]:
    text = mx.random.randint(0, 97, (1, 200), key=mx.random.key(3))
    logits = []
    for length in lengths:
        logits.append(model(text[:, start : start + length], cache=caches)[:, -1])
        mx.eval(logits[-1], [cache.state for cache in caches] if length > 1 else [])
        start += length
    return logits


def rows(caches: Sequence[Any]) -> list[Any]:
    return [mx.sort(cache.position, axis=-1).tolist() for cache in caches]


@pytest.mark.parametrize("setting", SETTINGS)
def test_scores_stand_for_the_query_and_the_same_rows_stay(
    setting: str, make_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, judged = make_llama(), 0
    caches = made(model, setting)
    for number, length in enumerate(LENGTHS):
        read(model, caches, [length], sum(LENGTHS[:number]))
        for cache in caches:
            known = cache.layer.score is not None
            judged += known
            assert not known or (cache.layer.seen is None and cache.plan.due(cache.layer))
    assert judged >= 2 * len(caches)
    monkeypatch.setattr(Plan, "takes_mass", lambda plan, layer, *rest, **more: False)
    others = made(model, setting)
    read(model, others, LENGTHS)
    assert all(cache.layer.score is None for cache in others)
    assert rows(caches) == rows(others)


@pytest.mark.parametrize("setting", SETTINGS)
def test_from_a_file_and_in_a_batch_it_goes_on_as_it_would(
    setting: str, make_llama: Any, tmp_path: Path
) -> None:
    model = make_llama()
    caches = made(model, setting)
    read(model, caches, LENGTHS[:7])
    start = caches[0].tokens_seen
    vqx.save_cache(tmp_path / "one.safetensors", caches)
    again = vqx.load_cache(tmp_path / "one.safetensors", model)
    batch = [cache.merge([cache, cache]) for cache in caches]
    assert all(cache.layer.score is not None for cache in caches)
    one, other = (read(model, each, [1, 1, 1, 1], start) for each in (caches, again))
    assert all(mx.array_equal(*both) for both in zip(one, other, strict=True))
    text = mx.random.randint(0, 97, (1, 200), key=mx.random.key(3))
    for at in range(start, start + 4):
        together = model(mx.concatenate([text[:, at : at + 1]] * 2), cache=batch)[:, -1]
    assert mx.allclose(together, mx.concatenate([one[-1]] * 2), atol=1e-4)
    assert [rows([each.extract(1)]) for each in batch] == [rows([cache]) for cache in caches]
