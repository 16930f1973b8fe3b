"""Run others' code on the recorded tensors and count the rows that it and our methods both keep.

Second half of the comparison (record.py is the first). Prints a table and writes JSON.

    VQX_PEERS=CHECKOUTS python integration-tests/peers/compare.py FOLDER --out docs/results
"""

import argparse
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import official
import torch
from official import Forward, Peer
from pairs import PAIRS, Pair
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

TENSORS = ("queries", "keys", "values", "hidden")
CHECKOUTS = ("TOVA", "H2O", "MorphKV", "keyformer-llm", "R-KV")


class Recording(NamedTuple):
    """What record.py wrote, the model in transformers, and the layers that are compared."""

    tensors: dict[str, np.ndarray]  # [L, B, heads, T, D]; hidden [L, B, T, E]
    about: dict[str, Any]
    model: LlamaForCausalLM
    layers: range
    failures: dict[str, str]  # files of a peer that stop with an error, with the error


def press(name: str, model: LlamaForCausalLM, budget: int, **options: Any) -> Peer:
    """A press of kvpress, called after each forward on the rows held; ``Outer(Inner)`` wraps one."""
    outer, _, inner = name.rstrip(")").partition("(")
    chosen = getattr(import_module("kvpress"), inner or outer)(**options)
    if inner:
        chosen = getattr(import_module("kvpress"), outer)(chosen)
    chosen.post_init_from_model(model)
    held: list[torch.Tensor] = []

    def peer(forward: Forward) -> torch.Tensor:
        new = forward[1:3]
        rows = [torch.cat(pair, dim=2) for pair in zip(held, new, strict=True)] if held else list(new)
        count = rows[0].shape[2]
        chosen.compression_ratio = 1 - (budget + 0.5) / count
        place = torch.arange(forward.start, forward.start + forward.length)[None]
        turns = model.model.rotary_emb(forward.hidden, place)
        forward.module.rotary_emb = model.model.rotary_emb  # as BasePress.__call__ sets it
        more = {"position_embeddings": turns, "cache_position": place[0]}
        held[:] = chosen.compress(forward.module, forward.hidden, *rows, weights(forward, rows[0]), more)
        return held[0][0]

    return peer


def weights(forward: Forward, keys: torch.Tensor) -> torch.Tensor:
    """Attention of the forward's queries over the rows held, ``[1, Hq, S, n]``."""
    group, before = forward.queries.shape[1] // keys.shape[1], keys.shape[2] - forward.length
    logits = forward.queries @ keys.repeat_interleave(group, 1).transpose(2, 3) * keys.shape[3] ** -0.5
    hidden = torch.ones(logits.shape[2:], dtype=torch.bool).triu(before + 1)
    return logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)


def maker(pair: Pair, model: LlamaForCausalLM, budget: int) -> Callable[[], Peer]:
    kind, _, name = pair.theirs.partition(".")
    options = pair.their_options(budget)
    if kind == "kvpress":
        return lambda: press(name, model, budget, **options)
    return lambda: getattr(official, name)(budget, **options)


def positions(rows: Sequence[torch.Tensor], keys: torch.Tensor) -> list[set[int]]:
    """Which recorded keys ``[H, T, D]`` the rows are, ``[n, D]`` for each head."""
    found = []
    for mine, recorded in zip(map(coded, rows), map(coded, keys), strict=True):
        order = np.argsort(recorded)
        slots = np.minimum(np.searchsorted(recorded, mine, sorter=order), len(order) - 1)
        if not (recorded[order[slots]] == mine).all():
            raise ValueError("a row held is none of the recorded keys")
        found.append(set(order[slots].tolist()))
    return found


def coded(rows: torch.Tensor) -> np.ndarray:
    """One sortable number for each row ``[n, D]``: the bits of its first four channels."""
    return np.ascontiguousarray(rows[:, :4].numpy()).view(np.complex128)[:, 0]


def theirs(make: Callable[[], Peer], forwards: list[Forward], late: bool) -> Iterator[list[set[int]]]:
    """The positions held at the prompt's end and after each step, a set for each head."""
    peer, keys = make(), torch.cat([forward.keys[0] for forward in forwards], dim=1)
    for number, forward in enumerate(forwards):
        held = positions(peer(forward), keys)
        if not late:
            yield held
        elif number:
            yield [places - {forward.start} for places in held]


def late(pair: Pair) -> bool:
    """Theirs evicts inside the forward after."""
    return bool(getattr(getattr(official, pair.theirs.partition(".")[2], None), "late", False))


def forwards_of(pair: Pair, recording: Recording, layer: int, text: int) -> list[Forward]:
    """The prompt and the tokens after it, as theirs is given them."""
    tensors, about, model, *_ = recording
    arrays = [torch.from_numpy(tensors[name][layer, text])[None] for name in TENSORS]
    if pair.heads == "each":
        group = arrays[0].shape[1] // arrays[1].shape[1]
        arrays[1:3] = (array.repeat_interleave(group, dim=1) for array in arrays[1:3])
    steps = about["steps"] if pair.decode else 0
    ends = [0, *range(about["prompt"], about["prompt"] + steps + 1 + late(pair))]
    noise, module = torch.from_numpy(tensors["noise"][layer]), model.model.layers[layer].self_attn
    return [
        Forward(*(array[..., first:last, :] for array in arrays), first, module, noise)
        for first, last in pairwise(ends)
    ]


def compared(pair: Pair, ours: np.ndarray, make: Callable[[], Peer], recording: Recording) -> np.ndarray:
    """Shares of equal rows ``[moment, set]``; ours ``[L, moments, B, H, n]``."""
    shares = []
    for layer, text in product(recording.layers, range(ours.shape[2])):
        forwards = forwards_of(pair, recording, layer, text)
        if pair.theirs == "official.keyformer":
            recording.failures.update(official.keyformer_that_drops(forwards, ours.shape[-1], 10))
        each = []
        for moment, held in enumerate(theirs(make, forwards, late(pair))):
            mine = [set(rows.tolist()) for rows in ours[layer, moment, text]]
            each.append([len(a & b) / len(a) for a, b in zip(mine, held, strict=True)])
        shares.append(each)
    return np.concatenate(shares, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--every", type=int, default=3, help="compare one layer of so many (default 3)")
    given = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    about = json.loads((given.folder / "about.json").read_text())
    if about["pairs"] != [pair.name for pair in PAIRS]:
        raise ValueError("the pairs changed since the recording: run record.py again")
    tensors = dict(np.load(given.folder / "tensors.npz"))
    kept = np.load(given.folder / "ours.npz")
    model = LlamaForCausalLM.from_pretrained(given.folder / "model", attn_implementation="eager")
    layers = range(0, len(tensors["keys"]), given.every)
    recording, results = Recording(tensors, about, model, layers, {}), []
    for number, pair in enumerate(PAIRS):
        print(pair.name)
        for budget in about["budgets"]:
            make = maker(pair, model, budget)
            shares = compared(pair, kept[f"{number} {budget}"], make, recording)
            found = {"budget": budget, "prompt": figures(shares[0]), "sets": shares.shape[1]}
            if pair.decode:
                found["decode"] = figures(shares[1:])
            line = "  ".join(f"{part} {found[part]}" for part in ("prompt", "decode") if part in found)
            print(f"    {budget:4} rows: {line}", flush=True)
            results.append({"pair": pair.name, **found, "reason": pair.reason})
    record = {
        "what": " ".join((__doc__ or "").split("\n\n")[:2]),
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()} {platform.system()}, cpu",
        "versions": about["versions"]
        | {name: version(name) for name in ("torch", "transformers", "kvpress")},
        "commits": {name: official.commit(name) for name in CHECKOUTS},
        "recording": {key: about[key] for key in ("texts", "prompt", "steps", "budgets")}
        | {"layers": [*layers]},
        "results": results,
        "keyformer's files that drop rows": recording.failures,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "peers.json").write_text(json.dumps(record, indent=1) + "\n")


def figures(shares: np.ndarray) -> dict[str, float]:
    """The mean share of equal rows, the least, and the share of sets that are equal as a whole."""
    return {
        "rows": round(float(shares.mean()), 5),
        "least": round(float(shares.min()), 4),
        "sets": round(float((shares == 1).mean()), 4),
    }


if __name__ == "__main__":
    main()
