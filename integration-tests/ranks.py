"""One of several processes that share a model: what its caches keep, beside what one process keeps alone.

    python ranks.py BACKEND heads|layers METHOD...    (each process with MLX's own variables, as mlx.launch)

Prints, on rank 0, a line of JSON for each method: the share of rows kept that are the same, and whether the
logits are near.
"""

import json
import sys
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
from mlx_lm.models import llama, qwen2

HEADS = 6
SIZES = {
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_attention_heads": 2 * HEADS,
    "num_key_value_heads": HEADS,
    "rms_norm_eps": 1e-5,
    "vocab_size": 96,
}
BUDGET = 24


def model_of(kind: str) -> Any:
    mx.random.seed(0)
    if kind == "heads":
        sizes = {**SIZES, "num_hidden_layers": 3, "model_type": "llama", "head_dim": 16}
        model: Any = llama.Model(llama.ModelArgs.from_dict(sizes))
    else:
        sizes = {**SIZES, "num_hidden_layers": 7, "model_type": "qwen2", "rope_theta": 1e4}
        model = qwen2.Model(qwen2.ModelArgs.from_dict(sizes))
    mx.eval(model.parameters())
    return model


def read(model: Any, method: str, **options: Any) -> tuple[list[np.ndarray], np.ndarray]:
    """The rows that each layer keeps, [H, n] sorted, and the last logits."""
    spec = vqx.load(method)
    known = {**(spec.example or {}), "budget": BUDGET, **options}
    caches = vqx.make_cache(model, method, **known)
    tokens = mx.random.randint(0, 96, (1, 64), key=mx.random.key(7))
    for first, last in ((0, 30), (30, 44), *((at, at + 1) for at in range(44, 64))):
        logits = model(tokens[:, first:last], cache=caches)
        mx.eval(logits, [cache.state for cache in caches])
    kept = [np.sort(np.array(cache.position[0]), axis=-1) for cache in caches]
    return kept, np.array(logits[0, -1].astype(mx.float32))


def gathered(group: Any, kept: list[np.ndarray], kind: str) -> list[np.ndarray]:
    """All ranks' rows: heads side by side, or layers in the model's order."""
    if kind == "heads":
        return [np.array(mx.distributed.all_gather(mx.array(rows), group=group)) for rows in kept]
    least = max(int(mx.distributed.all_max(mx.array(len(kept)), group=group).item()), len(kept))
    rows = np.stack([*kept, *[np.full_like(kept[0], -1)] * (least - len(kept))])
    every = np.array(mx.distributed.all_gather(mx.array(rows)[None], group=group))
    # the last rank holds the first layers
    return [layer for rank in every[::-1] for layer in rank if layer.max() >= 0]


def main() -> None:
    backend, kind, *methods = sys.argv[1:]
    group = mx.distributed.init(strict=True, backend=backend)
    for method in methods:
        alone, right = read(model_of(kind), method)
        model = model_of(kind)
        if kind == "heads":
            model.shard(group)
        else:
            model.model.pipeline(group)
        try:
            kept, logits = read(model, method)
        except ValueError as error:
            found: dict[str, Any] = {"refused": str(error)}
        else:
            every = gathered(group, kept, kind)
            same = [np.mean(one == other) for one, other in zip(every, alone, strict=True)]
            near = np.abs(logits - right).max() / np.abs(right).max()
            found = {"same": float(np.mean(same)), "near": bool(near < 1e-3)}
        if group.rank() == 0:
            print(json.dumps({"method": method, "ranks": group.size(), **found}), flush=True)


if __name__ == "__main__":
    main()
