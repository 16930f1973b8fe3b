"""Every model file of mlx-lm with tokens that can be taken back: read in drafts, and trimmed.

    uv run python integration-tests/studies/undo_models.py [METHOD]

Tiny random models, 12 rows, ``undo=3``. The logits of tokens read three or four at once are compared with
those read one by one, and the logits after a trim with those of caches that never read what was trimmed. Two
minutes.
"""

import sys
import warnings
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx

sys.path.insert(0, str(Path(__file__).parent.parent))
from tiny_models.build import model_files, tiny_model

READ = 16
TOKENS, OTHERS = (mx.random.randint(1, 50, (1, 60), key=mx.random.key(seed)) for seed in (0, 1))


def read(model: Any, caches: list[Any], lengths: list[int], tokens: mx.array = TOKENS) -> mx.array:
    """The logits of forwards of these lengths."""
    logits = []
    for first, last in pairwise(accumulate(lengths, initial=caches[0].offset)):
        logits.append(model(tokens[:, first:last], cache=caches))
        mx.eval(logits[-1], [cache.state for cache in caches])
    return mx.concatenate(logits, axis=1)


def difference(model: Any, method: str) -> float:
    """The greatest difference of a logit, as part of the greatest logit."""
    alone, drafted, never = (vqx.make_cache(model, method, budget=12, undo=3) for _ in range(3))
    for caches in (alone, drafted, never):
        read(model, caches, [READ])
    pairs = [(read(model, alone, [1] * 16), read(model, drafted, [4, 4, 1, 3, 4]))]
    for cache in drafted:
        cache.trim(3)
    read(model, never, [1] * 13)
    pairs.append((read(model, drafted, [1, 3, 1], OTHERS), read(model, never, [1, 3, 1], OTHERS)))
    return max(float(mx.max(mx.abs(one - other)) / mx.max(mx.abs(one))) for one, other in pairs)


def main() -> None:
    warnings.simplefilter("ignore")
    method = sys.argv[1] if len(sys.argv) > 1 else "tova"
    right, refused = 0, 0
    for name in model_files():
        try:
            model = tiny_model(name)
            vqx.make_cache(model, method, budget=12)
        except Exception:  # no model, or none of which rows are evicted here
            continue
        try:
            vqx.make_cache(model, method, budget=12, undo=3)
        except ValueError as error:
            refused += 1
            print(f"{name}: {error}")
            continue
        found = difference(model, method)
        right += found < 0.02
        if found >= 0.02:
            print(f"{name}: differs by {found:.3f}")
    print(f"{right} model files read in drafts and taken back as one by one, {refused} refused")


if __name__ == "__main__":
    main()
