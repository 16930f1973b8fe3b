"""Faults that users of other caches reported of batches, files, trims and speculation: for every method.

``docs/field-cases.md`` names the test of each case, here and elsewhere.
"""

import re
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.models.cache import (
    can_trim_prompt_cache,
    load_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from subjects import NATURES, caches_of, method
from tiny_models.build import tiny_model

ROOT = Path(__file__).parent.parent
BUDGET = 24


def text(count: int, *, seed: int) -> list[int]:
    tokens: list[int] = mx.random.randint(0, 97, (count,), key=mx.random.key(seed)).tolist()
    return tokens


def greedy(model: Any, caches: list[Any], prompt: list[int], count: int) -> list[int]:
    step = generate_step(mx.array(prompt), model, max_tokens=count, prompt_cache=caches)
    return [int(token) for token, _ in step]


@method
def test_after_an_eviction_a_trim_is_refused_and_moves_nothing(method: str, tiny: Any) -> None:
    caches, never = (caches_of(tiny.model, method, budget=BUDGET) for _ in range(2))
    tokens = mx.array([text(60, seed=1)])
    for each in (caches, never):
        tiny.read(each, tokens, [40, *[1] * 5])
    assert any(cache.tokens_kept < cache.tokens_seen for cache in caches)
    assert not can_trim_prompt_cache(caches)
    assert trim_prompt_cache(caches, 5) == 0
    for cache in caches:
        with pytest.raises(ValueError, match="cannot take back 5 tokens"):
            cache.trim(5)
        assert cache.trim(0) == 0
    later = tokens[:, 45:]
    assert mx.array_equal(tiny.read(caches, later, [1] * 5), tiny.read(never, later, [1] * 5)).item()


@method
def test_speculation_gives_plain_greedys_tokens_or_is_refused(
    method: str, tiny: Any, make_llama: Any
) -> None:
    """Prompt inside the budget, its end reached while tokens are drafted."""
    prompt, draft = text(14, seed=2), make_llama(num_hidden_layers=1)

    def speculated(caches: list[Any]) -> list[int]:
        both = [*caches, *draft.make_cache()]
        steps = speculative_generate_step(
            mx.array(prompt), tiny.model, draft, num_draft_tokens=3, max_tokens=20, prompt_cache=both
        )
        return [int(token) for token, *_ in steps]

    with pytest.raises(ValueError, match="trimmable"):
        speculated(caches_of(tiny.model, method, budget=BUDGET))
    nature = NATURES[method]
    if nature.merges or nature.shares_heads or nature.shares_layers:
        with pytest.raises(ValueError, match="undo=3: a method that merges values, or shares rows"):
            caches_of(tiny.model, method, budget=BUDGET, undo=3)
        return
    plain, drafted = (caches_of(tiny.model, method, budget=BUDGET, undo=3) for _ in range(2))
    assert speculated(drafted) == greedy(tiny.model, plain, prompt, 20)
    assert any(cache.tokens_kept < cache.tokens_seen for cache in drafted)


@method
def test_every_methods_cache_comes_back_from_a_file(method: str, tiny: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "cache.safetensors")
    fresh = caches_of(tiny.model, method, budget=BUDGET)
    save_prompt_cache(file, fresh)
    caches = load_prompt_cache(file)
    assert all(cache.empty() for cache in caches)
    tokens = mx.array([text(60, seed=3)])
    for each in (fresh, caches):
        tiny.read(each, tokens, [40, *[1] * 5])
    save_prompt_cache(file, caches)
    back = load_prompt_cache(file)
    assert [(type(a), a.offset, a.plan.method.budget) for a in back] == [
        (type(a), a.offset, a.plan.method.budget) for a in caches
    ]
    later = tokens[:, 45:]
    found = [tiny.read(each, later, [1, 1, 4, 1]) for each in (fresh, caches, back)]
    assert mx.array_equal(found[0], found[1]).item()
    assert mx.array_equal(found[0], found[2]).item()
    assert any(cache.tokens_kept < cache.tokens_seen for cache in back)


HISTORIES, MORE, COUNT = (40, 4, 0), (5, 9, 6), 10


@method
def test_caches_of_very_different_histories_answer_in_a_batch_as_alone(method: str, tiny: Any) -> None:
    model, prompts = tiny.model, [text(count, seed=count) for count in MORE]

    def warmed() -> list[list[Any]]:
        lists = [caches_of(model, method, budget=BUDGET) for _ in HISTORIES]
        for caches, count in zip(lists, HISTORIES, strict=True):
            if count:
                tiny.read(caches, mx.array([text(count, seed=50 + count)]), [count])
        return lists

    alone = warmed()
    answers = [greedy(model, caches, prompt, COUNT) for caches, prompt in zip(alone, prompts, strict=True)]
    generator = BatchGenerator(model, max_tokens=COUNT)
    histories = [text(count, seed=50 + count) for count in HISTORIES]
    uids = generator.insert(prompts, caches=warmed(), all_tokens=histories)
    tokens: dict[int, list[int]] = {uid: [] for uid in uids}
    out = {}
    while responses := generator.next_generated():
        for response in responses:
            tokens[response.uid].append(response.token)
            if response.finish_reason:
                out[response.uid] = response.prompt_cache
    generator.close()
    assert [tokens[uid] for uid in uids] == answers
    for uid, caches in zip(uids, alone, strict=True):
        lengths = [1] * 8
        later = mx.array([text(8, seed=4)])
        if out[uid][0].tokens_seen > caches[0].tokens_seen:  # mlx-lm reads a batch's last token too
            tiny.read(caches, mx.array([answers[uids.index(uid)][-1:]]), [1])
        found, own = tiny.read(out[uid], later, lengths), tiny.read(caches, later, lengths)
        assert mx.allclose(found, own, rtol=1e-3, atol=1e-4).item()
        assert [cache.tokens_kept for cache in out[uid]] == [cache.tokens_kept for cache in caches]


def test_equal_sequences_of_a_batch_stay_equal_where_positions_close_up(tiny: Any) -> None:
    caches = vqx.make_cache(tiny.model, "streaming-llm", budget=16, positions="compact")
    tokens = mx.array([text(40, seed=6)] * 2)
    logits = tiny.read(caches, tokens, [20, *[1] * 20])
    assert mx.allclose(logits[0], logits[1], rtol=0, atol=1e-4).item()  # sums may come in another order
    for cache in caches:
        keys, _ = cache.keys_and_values()
        assert cache.tokens_kept == 16 < cache.tokens_seen
        assert mx.allclose(keys[0], keys[1], rtol=0, atol=1e-4).item()


def test_latent_rows_in_few_bits_work_or_are_refused_when_built() -> None:
    model = tiny_model("deepseek_v3")
    with pytest.raises(ValueError, match="channels make no whole groups of group_size=64"):
        vqx.make_cache(model, "h2o", budget=16, bits=8)


ROW = re.compile(r"^\| (B\d\d) \|.*$", re.MULTILINE)
TEST = re.compile(r"`([\w/.-]+\.py)::(test_\w+)`")
CASES = {row[1]: TEST.findall(row[0]) for row in ROW.finditer((ROOT / "docs" / "field-cases.md").read_text())}


def test_every_case_has_a_line() -> None:
    assert len(CASES) == 40


@pytest.mark.parametrize("case", CASES)
def test_a_case_names_tests_that_exist(case: str) -> None:
    assert CASES[case], "no test"
    for file, name in CASES[case]:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
