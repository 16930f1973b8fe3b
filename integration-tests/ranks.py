"""One of several processes that share a model: what its caches keep, beside what one process keeps alone.

    python ranks.py BACKEND heads|layers METHOD...    (each process with MLX's own variables, as mlx.launch)

Prints, on rank 0, a line of JSON for each method: the share of rows kept that are the same, on the worst
rank and layer, and whether the logits are near.
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
    tokens = mx.random.randint(0, 96, (1, 54), key=mx.random.key(7))
    for first, last in ((0, 30), (30, 44), *((at, at + 1) for at in range(44, 54))):
        logits = model(tokens[:, first:last], cache=caches)
        mx.eval(logits, [cache.state for cache in caches])
    kept = [np.sort(np.array(cache.position[0]), axis=-1) for cache in caches]
    return kept, np.array(logits[0, -1].astype(mx.float32))


def part_of(alone: list[np.ndarray], kept: list[np.ndarray], model: Any, rank: int) -> list[np.ndarray]:
    """Of what one process keeps, the layers or the heads that this rank has."""
    first = getattr(model.model, "start_idx", None)
    if first is not None:
        return alone[first : first + len(kept)]
    return [rows[rank * len(kept[0]) : (rank + 1) * len(kept[0])] for rows in alone]


def main() -> None:
    backend, kind, *methods = sys.argv[1:]
    group = mx.distributed.init(strict=True, backend=backend)
    for method, undo in [
        *((method, 0) for method in methods),
        *((method, 2) for method in methods if method == "h2o"),
    ]:
        alone, right = read(model_of(kind), method, undo=undo)
        model = model_of(kind)
        if kind == "heads":
            model.shard(group)
        else:
            model.model.pipeline(group)
        try:
            kept, logits = read(model, method, undo=undo)
        except ValueError as error:
            found: dict[str, Any] = {"refused": str(error)}
        else:
            pairs = zip(kept, part_of(alone, kept, model, group.rank()), strict=True)
            same = [float(np.mean(one == other)) if one.shape == other.shape else 0.0 for one, other in pairs]
            near = np.abs(logits - right).max() < 1e-3 * np.abs(right).max()
            worst = mx.distributed.all_min(mx.array([min(same), float(near)]), group=group)
            found = {"same": worst[0].item(), "near": bool(worst[1].item())}
        if group.rank() == 0:
            print(json.dumps({"method": method, "undo": undo, "ranks": group.size(), **found}), flush=True)


if __name__ == "__main__":
    main()
