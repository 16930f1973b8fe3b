"""One of several processes that share a model: what its caches keep, beside what one process keeps alone.

    python ranks.py BACKEND heads|head|layers SETTING...   (each process with the variables of mlx.launch)

Heads of a layer are split, or one for each process, or layers. Prints, on rank 0, a line of JSON for each
setting (``h2o``, ``h2o:undo=2``): the share of heads that keep the same rows, on the worst rank, whether the
logits are near, and by how many rows this process's part of a layer is most above or below an even one.
"""

import json
import sys
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import numpy as np
from mlx_lm.models import llama, qwen2
from vqx.build import chain_of
from vqx.settings import label, settings

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


def model_of(kind: str, ranks: int) -> Any:
    mx.random.seed(0)
    if kind != "layers":
        sizes = {**SIZES, "num_hidden_layers": 3, "model_type": "llama", "head_dim": 16}
        if kind == "head":
            sizes |= {"num_key_value_heads": ranks, "num_attention_heads": 2 * ranks}
        model: Any = llama.Model(llama.ModelArgs.from_dict(sizes))
    else:
        sizes = {**SIZES, "num_hidden_layers": 7, "model_type": "qwen2", "rope_theta": 1e4}
        model = qwen2.Model(qwen2.ModelArgs.from_dict(sizes))
    mx.eval(model.parameters())
    return model


def read(model: Any, setting: vqx.Setting) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """The rows that each layer's heads keep of two sequences, in order, and the last logits."""
    example = chain_of(setting.method)[-1].example or {}
    caches = vqx.make_cache(model, setting.method, **{**example, "budget": BUDGET, **setting.options})
    tokens = mx.random.randint(0, 96, (2, 54), key=mx.random.key(7))
    for first, last in ((0, 30), (30, 44), *((at, at + 1) for at in range(44, 54))):
        logits = model(tokens[:, first:last], cache=caches)
        mx.eval(logits, [cache.state for cache in caches])
    return [kept_by_heads(cache) for cache in caches], np.array(logits[:, -1].astype(mx.float32))


def kept_by_heads(cache: Any) -> list[np.ndarray]:
    """The positions that a head keeps of both sequences, in order, for every head."""
    position = np.array(cache.position)
    if not getattr(cache, "in_lanes", False):
        return [np.sort(both, axis=-1).ravel() for both in position.swapaxes(0, 1)]
    head, numbers = np.array(cache.layer.rows.columns["head"]), range(cache.layer.heads)
    return [
        np.concatenate([np.sort(p[h == n]) for p, h in zip(position, head, strict=True)]) for n in numbers
    ]


def part_of(alone: list[list[np.ndarray]], kept: list[list[np.ndarray]], model: Any, rank: int) -> Any:
    """Of what one process keeps, the layers or the heads that this rank has."""
    first = getattr(model.model, "start_idx", None)
    if first is not None:
        return alone[first : first + len(kept)]
    return [heads[rank * len(kept[0]) : (rank + 1) * len(kept[0])] for heads in alone]


def excess(alone: list[list[np.ndarray]], mine: list[list[np.ndarray]]) -> float:
    """By how many rows a layer's part is most above or below an even one."""
    rows = [[sum(map(len, layer)) / len(layer) for layer in layers] for layers in (alone, mine)]
    even = rows[0] if len(alone) == len(mine) else [float(np.mean(rows[0]))] * len(mine)
    return max(abs(one - other) for one, other in zip(rows[1], even, strict=True))


def main() -> None:
    backend, kind, *asked = sys.argv[1:]
    group = mx.distributed.init(strict=True, backend=backend)
    for setting in settings(asked):
        model = model_of(kind, group.size())
        if kind == "layers":
            model.model.pipeline(group)
        else:
            model.shard(group)
        try:
            alone, right = read(model_of(kind, group.size()), setting)
            kept, logits = read(model, setting)
        except ValueError as error:
            found: dict[str, Any] = {"refused": str(error)}
        except RuntimeError as error:  # of the device, on all ranks alike
            found = {"failed": str(error)}
        else:
            mine = part_of(alone, kept, model, group.rank())
            pairs = [both for layers in zip(kept, mine, strict=True) for both in zip(*layers, strict=True)]
            same = np.mean([np.array_equal(one, other) for one, other in pairs])
            near = np.abs(logits - right).max() < 1e-3 * np.abs(right).max()
            worst = mx.distributed.all_min(mx.array([float(same), float(near)]), group=group)
            found = {"same": worst[0].item(), "near": bool(worst[1].item()), "excess": excess(alone, mine)}
        if group.rank() == 0:
            print(json.dumps({"setting": label(setting), "ranks": group.size(), **found}), flush=True)


if __name__ == "__main__":
    main()
