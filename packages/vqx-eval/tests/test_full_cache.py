"""The full cache scores exactly as a forward without a cache, however the text is read."""

from collections.abc import Callable
from itertools import chain

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from vqx import Setting
from vqx.registry import Registry
from vqx_eval.candidates import FULL, Engine
from vqx_eval.forced import forced, log_probabilities
from vqx_eval.samples import Batch, Protocol, batches
from vqx_eval.task import Reference, Wanted
from vqx_eval.tasks import load_tasks
from vqx_eval.writing import losses

FLOAT32 = 2e-4  # softmax over hundreds of rows, summed in another order


def _batch(wanted: Wanted, task: str = "passkey", protocol: Protocol = "aware") -> Batch:
    return batches(load_tasks()[task].make(wanted), protocol, 4)[0]


def _no_cache(model: nn.Module, batch: Batch) -> np.ndarray:
    """Loss ``[B, T]`` of the answers, everything read at once."""
    before = [list(chain(*parts)) for parts in zip(*batch.prompts, strict=True)]
    tokens = mx.array([prompt + answer for prompt, answer in zip(before, batch.answers, strict=True)])
    own = log_probabilities(model(tokens[:, :-1]))[:, len(before[0]) - 1 :]
    return -np.array(mx.take_along_axis(own, mx.array(batch.answers)[..., None], axis=-1)[..., 0])


@pytest.mark.parametrize("protocol", ["aware", "agnostic"])
@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_the_full_cache_scores_as_a_forward_without_a_cache(
    tiny_llama: nn.Module, wanted: Wanted, chunk: int, protocol: Protocol
) -> None:
    batch = _batch(wanted, protocol=protocol)
    found = forced(Engine(tiny_llama, chunk).full().start(), batch)
    assert np.abs(found.loss - _no_cache(tiny_llama, batch)).max() < FLOAT32


def test_the_full_cache_does_not_differ_from_itself(tiny_llama: nn.Module, wanted: Wanted) -> None:
    task, batch = load_tasks()["continuation"], _batch(wanted, "continuation", "plain")
    full = Engine(tiny_llama).full()
    for figures in task.measure(full, batch, Reference(full=full, batch=batch)):
        assert abs(figures["KL"]) < 1e-6
        assert figures["agreement"] == 1
        assert abs(figures["loss"]) < 1e-6


def test_written_text_is_judged_as_by_one_forward(tiny_llama: nn.Module, wanted: Wanted) -> None:
    batch = _batch(wanted, "continuation", "plain")
    found = losses(Engine(tiny_llama).full().start(), batch.prompts[0], mx.array(batch.answers), piece=5)
    assert np.abs(np.array(found) - _no_cache(tiny_llama, batch)).max() < FLOAT32


def test_a_budget_that_holds_everything_changes_nothing(
    tiny_llama: nn.Module, wanted: Wanted, toys: Registry
) -> None:
    batch, engine = _batch(wanted), Engine(tiny_llama, 64)
    ample = engine.evicting(Setting("toy-newest", {}), 1000, "aware")
    assert ample.label != FULL
    one, other = forced(engine.full().start(), batch), forced(ample.start(), batch)
    assert np.abs(one.loss - other.loss).max() < FLOAT32


def test_every_fact_is_found_by_a_model_that_looks_facts_up(
    lookup: nn.Module, facts: Callable[[float], Batch]
) -> None:
    for depth in (0.0, 0.5, 1.0):
        assert forced(Engine(lookup, 16).full().start(), facts(depth)).hit.all()
