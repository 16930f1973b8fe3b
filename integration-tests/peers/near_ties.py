"""How close the scores are of rows in which MorphKV's code for llama and ours differ without a reason.

VQX_PEERS=CHECKOUTS python integration-tests/peers/near_ties.py FOLDER
"""

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import torch
from compare import Recording, forwards_of, maker, theirs
from pairs import PAIRS
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

EVERY = 3


def main() -> None:
    folder = Path(sys.argv[1])
    disable_progress_bar()
    torch.set_grad_enabled(False)
    about = json.loads((folder / "about.json").read_text())
    tensors, kept = dict(np.load(folder / "tensors.npz")), np.load(folder / "ours.npz")
    model = LlamaForCausalLM.from_pretrained(folder / "model")
    recording = Recording(tensors, about, model, range(0, len(tensors["keys"]), EVERY), {})
    for number, pair in enumerate(PAIRS):
        if pair.theirs != "official.morphkv_llama" or pair.reason:
            continue
        for budget, layer, text in product(about["budgets"], recording.layers, range(len(about["texts"]))):
            forwards = forwards_of(pair, recording, layer, text)
            ours = kept[f"{number} {budget}"][layer, :, text]
            for moment, held in enumerate(theirs(maker(pair, model, budget), forwards, True)):
                for head, (mine, places) in enumerate(zip(ours, held, strict=True)):
                    if swapped := set(mine.tolist()) ^ places:
                        scores = fused(
                            tensors, layer, text, head, about["prompt"] + moment, **pair.their_options(1)
                        )
                        place = f"layer {layer}, {about['texts'][text]}, head {head}, token {moment}"
                        print(f"{budget} rows, {place}:", {row: scores[row] for row in sorted(swapped)})


def fused(
    tensors: dict[str, np.ndarray],
    layer: int,
    text: int,
    head: int,
    seen: int,
    window: int,
    fuse: str = "sum",
) -> np.ndarray:
    """The fused weights of the last ``window`` queries over all older rows, in double precision."""
    queries = tensors["queries"][layer, text, head, seen - window : seen].astype(np.float64)
    keys = tensors["keys"][layer, text, head // 3, : seen - window].astype(np.float64)
    weights = np.exp(queries @ keys.T * keys.shape[1] ** -0.5)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.max(axis=0) if fuse == "max" else weights.sum(axis=0)


if __name__ == "__main__":
    main()
