"""How close the scores are of rows in which MorphKV's code for llama and ours differ without a reason.

VQX_PEERS=CHECKOUTS python integration-tests/peers/near_ties.py FOLDER
"""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare import Recording, forwards_of, maker, theirs
from pairs import PAIRS
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar


def main() -> None:
    folder = Path(sys.argv[1])
    disable_progress_bar()
    torch.set_grad_enabled(False)
    about = json.loads((folder / "about.json").read_text())
    tensors, kept = dict(np.load(folder / "tensors.npz")), np.load(folder / "ours.npz")
    model = LlamaForCausalLM.from_pretrained(folder / "model")
    recording = Recording(tensors, about, model, {})
    for number, pair in enumerate(PAIRS):
        if pair.theirs != "official.morphkv_llama" or pair.heads != "each":
            continue
        for budget, layer, text in product(about["budgets"], about["layers"], range(len(about["texts"]))):
            forwards = forwards_of(pair, recording, budget, layer, text)
            ours = kept[f"{number} {budget} {layer} position"][:, text, :, 1:]
            for moment, held in enumerate(theirs(maker(pair, model, budget), forwards, True)):
                for head, (mine, places) in enumerate(zip(ours[moment], held, strict=True)):
                    swapped = set(mine.tolist()) ^ places.keys()
                    if swapped:
                        newest = about["prompt"] + moment - 1
                        before = [*ours[moment - 1, head], newest] if moment else range(newest + 1)
                        options = pair.their_options(budget)
                        index = about["layers"].index(layer)
                        scores = fused(tensors, index, text, head, newest, np.array(before), **options)
                        place = f"layer {layer}, {about['texts'][text]}, head {head}, token {moment}"
                        found = {row: f"{scores.get(row, 0):.10f}" for row in sorted(swapped)}
                        print(f"{budget} rows, {place}:", found)


def fused(
    tensors: Any,
    layer: int,
    text: int,
    head: int,
    newest: int,
    held: np.ndarray,
    window: int,
    fuse: str = "sum",
) -> dict[int, float]:
    """The fused weights of the last ``window`` queries over the older rows held, in double precision."""
    old = held[held <= newest - window]
    queries = tensors["queries"][layer, text, head, newest - window + 1 : newest + 1].astype(np.float64)
    keys = tensors["keys"][layer, text, head // 3, old].astype(np.float64)
    weights = np.exp(queries @ keys.T * keys.shape[1] ** -0.5)
    weights /= weights.sum(axis=1, keepdims=True)
    score = weights.max(axis=0) if fuse == "max" else weights.sum(axis=0)
    return dict(zip(old.tolist(), score.tolist(), strict=True))


if __name__ == "__main__":
    main()
