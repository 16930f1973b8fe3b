"""Every model file of mlx-lm in batches: log-probabilities and kept rows beside those of single sequences.

    uv run python integration-tests/studies/batches.py [METHOD[:OPTION=VALUE]]

Four prompts join a BatchGenerator, one of them late, with tiny random models; mlx-lm's own caches go through
the same, since where its own batches differ from single sequences ours cannot agree. About five minutes.
"""

import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from vqx.settings import settings
from vqx.testing import remaining

sys.path.insert(0, str(Path(__file__).parent.parent))
from tiny_models.build import model_files, tiny_model

STEP, BUDGET, TOKENS = 8, 16, 14
LENGTHS = (3, 30, 11, 1)


class Ended(NamedTuple):
    fed: list[int]  # what the caches read
    logprobs: mx.array
    caches: list[Any]


def together(model: Any, prompts: list[list[int]], fresh: Callable[[], list[Any]]) -> list[Ended]:
    generator = BatchGenerator(model, max_tokens=TOKENS, prefill_step_size=STEP)
    uids = generator.insert(prompts[:3], [TOKENS, 6, TOKENS], caches=[fresh() for _ in prompts[:3]])
    found: dict[int, list[mx.array]] = {uid: [] for uid in uids}
    ended: dict[int, Ended] = {}
    while responses := generator.next_generated():
        for one in responses:
            found[one.uid].append(one.logprobs)
            if one.finish_reason:
                ended[one.uid] = Ended([*one.all_tokens], mx.stack(found[one.uid]), one.prompt_cache)
        if len(uids) == 3:
            uids += generator.insert(prompts[3:], caches=[fresh()])
            found[uids[-1]] = []
    return [ended[uid] for uid in uids]


def difference(model: Any, fresh: Callable[[], list[Any]]) -> tuple[float, bool]:
    """The greatest difference of a log-probability, in nats, and whether the kept rows are the same."""
    draw = random.Random(0)
    prompts = [[draw.randrange(60) for _ in range(length)] for length in LENGTHS]
    worst, same = 0.0, True
    for prompt, ended in zip(prompts, together(model, prompts, fresh), strict=True):
        caches, read = fresh(), len(prompt) - 1
        for first in range(0, read, STEP):
            model(mx.array([prompt[first : min(first + STEP, read)]]), cache=caches)
            mx.eval([cache.state for cache in caches])
        logits = mx.stack([model(mx.array([[token]]), cache=caches)[0, -1] for token in ended.fed[read:]])
        own = (logits - mx.logsumexp(logits, axis=-1, keepdims=True))[: ended.logprobs.shape[0]]
        apart = mx.max(mx.abs(own.astype(mx.float32) - ended.logprobs.astype(mx.float32)))
        worst = max(worst, float(apart.item()))
        for out, single in zip(ended.caches, caches, strict=True):
            if isinstance(single, vqx.EvictingCache):
                same &= np.array_equal(remaining(out).position, remaining(single).position)
    return worst, same


def told(model: Any, fresh: Callable[[], list[Any]]) -> str:
    try:
        worst, same = difference(model, fresh)
    except (AttributeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return f"{worst:.0e} nats, {'the same' if same else 'other'} rows"


def main(method: str) -> None:
    warnings.simplefilter("ignore")
    (name, options), *_ = settings([method])

    def fresh(model: Any) -> list[Any]:
        return vqx.make_cache(model, name, budget=BUDGET, **options)

    for file in model_files():
        try:
            model = tiny_model(file)
            if model is None:
                continue
            fresh(model)
        except Exception as error:
            print(f"{file:24} not tried: {str(error)[:90]}", flush=True)
            continue
        own = told(model, lambda: make_prompt_cache(model))  # noqa: B023
        ours = told(model, lambda: fresh(model))  # noqa: B023
        print(f"{file:24} mlx-lm: {own:28} {method}: {ours}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["tova"])
