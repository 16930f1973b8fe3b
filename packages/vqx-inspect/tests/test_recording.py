"""A recording says what the caches hold, and does not change what the model writes."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import vqx
from vqx_inspect import Recording, pieces, record

PROMPT = [3 + number * 7 % 60 for number in range(52)]
BUDGET, WRITE, CHUNK = 16, 9, 12


def _recorded(model: nn.Module, **options: object) -> Recording:
    caches = vqx.make_cache(model, "toy", budget=BUDGET, **options)
    return record(model, caches, PROMPT, write=WRITE, chunk=CHUNK)


def test_rows_recorded_as_held_are_those_that_the_next_forward_reads(tiny_llama: nn.Module) -> None:
    found = _recorded(tiny_llama)
    caches = vqx.make_cache(tiny_llama, "toy", budget=BUDGET)
    read = compared = 0
    for step, seen in enumerate(found.steps):
        tiny_llama(mx.array([found.tokens[read:seen]]), cache=caches)
        for place, cache in enumerate(caches):
            position = np.array(cache.position[0])
            for head in range(2):
                before = {int(token) for token in position[head] if token < read}
                if step:
                    held = np.flatnonzero(found.gone[place][head, :read] > step - 1)
                    assert before == set(held.tolist())
                    compared += len(before) < read
        read = seen
    assert compared > 30, "nothing was evicted"


def test_the_row_that_goes_next_has_the_lowest_score(tiny_llama: nn.Module) -> None:
    found = _recorded(tiny_llama)
    last = len(found.steps) - 1
    gone = 0
    for step in range(found.steps.index(len(PROMPT)) + 1, last):
        for place, score in enumerate(found.scores[step]):
            for head in range(2):
                went = np.flatnonzero(found.gone[place][head] == step)
                assert score[head, went] == np.nanmin(score[head])
                assert np.isinf(score[head, [0, 1, found.steps[step] - 1]]).all()
                gone += 1
    assert gone > 20


def test_looking_changes_nothing_that_is_written(tiny_llama: nn.Module) -> None:
    found = _recorded(tiny_llama)
    caches = vqx.make_cache(tiny_llama, "toy", budget=BUDGET)
    written, tokens = [], PROMPT[:-1]
    for first in range(0, len(tokens), CHUNK):
        tiny_llama(mx.array([tokens[first : first + CHUNK]]), cache=caches)
    token = PROMPT[-1]
    for _ in range(WRITE):
        token = int(mx.argmax(tiny_llama(mx.array([[token]]), cache=caches)[0, -1]).item())
        written.append(token)
    assert found.tokens == PROMPT + written
    assert found.steps == [12, 24, 36, 48, 51, *range(52, 62)]


def test_shares_are_parts_of_the_heads_chosen(tiny_llama: nn.Module) -> None:
    found = _recorded(tiny_llama)
    everything = found.share(-1)
    assert everything.sum() == pytest.approx(BUDGET)
    each = [found.share(-1, layer, head) for layer in range(3) for head in range(2)]
    assert np.mean(each, axis=0) == pytest.approx(everything)
    assert set(np.unique(each)) == {0.0, 1.0}
    assert found.share(0).tolist() == [1.0] * 12


def test_a_whole_prompt_is_held_until_it_was_read(tiny_llama: nn.Module) -> None:
    found = _recorded(tiny_llama, prompt="whole")
    before = found.steps.index(len(PROMPT)) - 1
    assert found.share(before).sum() == len(PROMPT) - 1
    assert found.share(before + 1).sum() == pytest.approx(BUDGET)


def test_token_cadence_knows_no_scores_of_a_prompt(tiny_llama: nn.Module) -> None:
    found = _recorded(tiny_llama, cadence="token", queries="keys")
    assert np.isnan(found.scores[1][0]).all()
    assert found.share(1).sum() == pytest.approx(BUDGET)


def test_an_end_stops_the_writing(tiny_llama: nn.Module) -> None:
    written = _recorded(tiny_llama).tokens[len(PROMPT) :]
    end = written[3]
    caches = vqx.make_cache(tiny_llama, "toy", budget=BUDGET)
    found = record(tiny_llama, caches, PROMPT, write=WRITE, chunk=CHUNK, ends=[end])
    assert found.tokens[len(PROMPT) :] == written[: written.index(end)]


def test_a_recording_may_begin_where_caches_have_read(tiny_llama: nn.Module) -> None:
    whole = _recorded(tiny_llama)
    caches = vqx.make_cache(tiny_llama, "toy", budget=BUDGET)
    for first in range(0, 36, CHUNK):
        tiny_llama(mx.array([PROMPT[first : first + CHUNK]]), cache=caches)
    late = record(tiny_llama, caches, PROMPT[36:], before=PROMPT[:36], write=WRITE, chunk=CHUNK)
    assert (late.tokens, late.prompt, late.steps) == (whole.tokens, whole.prompt, whole.steps[3:])
    assert np.array_equal(late.share(-1), whole.share(-1))


@pytest.mark.parametrize(
    "options",
    [{"interval": 4}, {"positions": "compact"}, {"cadence": "token"}],
    ids=lambda each: next(iter(each)),
)
def test_no_more_rows_are_recorded_than_may_be_held(
    tiny_llama: nn.Module, options: dict[str, object]
) -> None:
    found = _recorded(tiny_llama, **options)
    held = [found.share(step).sum() for step in range(1, len(found.steps))]
    assert max(held) <= BUDGET + (3 if "interval" in options else 0)
    assert min(held) == pytest.approx(BUDGET)


def test_caches_that_cannot_be_recorded_are_refused(tiny_llama: nn.Module) -> None:
    caches = vqx.make_cache(tiny_llama, "toy", budget=BUDGET, undo=2)
    with pytest.raises(ValueError, match="without undo"):
        record(tiny_llama, caches, PROMPT)
    with pytest.raises(ValueError, match="no tokens to read"):
        record(tiny_llama, vqx.make_cache(tiny_llama, "toy", budget=BUDGET), [])


def test_a_character_of_several_tokens_stands_at_the_last() -> None:
    tokens = [*"é¼a".encode()]

    def decode(some: list[int]) -> str:
        return bytes(some).decode(errors="replace")

    assert pieces(decode, tokens) == ["", "é", "", "¼", "a"]
