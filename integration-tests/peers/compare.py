"""Run others' code on the recorded tensors and count the rows that it and our methods both keep.

Second half of the comparison (record.py is the first). Prints a table and writes JSON.

    VQX_PEERS=CHECKOUTS python integration-tests/peers/compare.py FOLDER --out docs/results
"""

import argparse
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from importlib.metadata import version
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import kvpress
import merging
import numpy as np
import official
import torch
from official import Forward, Peer, weights
from pairs import PAIRS, Pair
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

Rows = dict[int, torch.Tensor]
"""Positions held -> what stands behind the keys, values or nothing."""
TENSORS = ("queries", "keys", "values", "hidden")
CLOSE = 1e-5  # float32 sums in another order
CHECKOUTS = ("TOVA", "H2O", "MorphKV", "keyformer-llm", "R-KV")


class Recording(NamedTuple):
    """What record.py wrote, and the model in transformers."""

    tensors: dict[str, np.ndarray]  # [L, B, heads, T, D]; hidden [L, B, T, E]
    about: dict[str, Any]
    model: LlamaForCausalLM
    failures: dict[str, str]  # files of a peer that stop with an error, with the error


def press(name: str, model: LlamaForCausalLM, budget: int, **options: Any) -> Peer:
    """A press of kvpress, called after each forward on the rows held; ``Outer(Inner)`` wraps one."""
    outer, _, inner = name.rstrip(")").partition("(")
    wraps, around = getattr(kvpress, outer), {}
    if inner:
        around = {key: options.pop(key) for key in [*options] if key in wraps.__dataclass_fields__}
    chosen = getattr(kvpress, inner or outer)(**options)
    if inner:
        chosen = wraps(chosen, **around)
    chosen.post_init_from_model(model)
    held: list[torch.Tensor] = []

    def peer(forward: Forward) -> torch.Tensor:
        new = forward[1:3]
        rows = [torch.cat(pair, dim=2) for pair in zip(held, new, strict=True)] if held else list(new)
        count = rows[0].shape[2]
        # others cut to a whole number below, this one rounds
        half = 0 if isinstance(chosen, kvpress.PyramidKVPress) else 0.5
        chosen.compression_ratio = 1 - (budget + half) / count
        place = torch.arange(forward.start, forward.start + forward.length)[None]
        turns = model.model.rotary_emb(forward.hidden, place)
        forward.module.rotary_emb = model.model.rotary_emb  # as BasePress.__call__ sets it
        more = {"position_embeddings": turns, "cache_position": place[0]}
        attention = None if outer == "ChunkKVPress" else weights(forward, rows[0])  # it makes its own
        held[:] = chosen.compress(forward.module, forward.hidden, *rows, attention, more)
        # presses with one budget for several heads only name the rows that go
        hidden = forward.module.__dict__.pop("masked_key_indices", None)
        if hidden is None:
            return held[0][0]
        stays = torch.ones(held[0].shape[:3], dtype=torch.bool)
        stays[hidden] = False
        return [mine[stay] for mine, stay in zip(held[0][0], stays[0], strict=True)]

    return peer


def maker(pair: Pair, model: LlamaForCausalLM, budget: int) -> Callable[[], Peer]:
    kind, _, name = pair.theirs.partition(".")
    options = pair.their_options(budget)
    if kind == "kvpress":
        return lambda: press(name, model, budget, **options)
    return lambda: getattr({"official": official, "merging": merging}[kind], name)(budget, **options)


def positions(rows: Sequence[torch.Tensor], keys: torch.Tensor) -> list[Rows]:
    """Which recorded keys ``[H, T, D]`` the rows ``[n, D]`` of each head are, and what is behind."""
    found = []
    for each, recorded in zip(rows, map(coded, keys), strict=True):
        mine = coded(each)
        order = np.argsort(recorded)
        slots = np.minimum(np.searchsorted(recorded, mine, sorter=order), len(order) - 1)
        if not (recorded[order[slots]] == mine).all():
            raise ValueError("a row held is none of the recorded keys")
        found.append(dict(zip(order[slots].tolist(), each[:, keys.shape[2] :], strict=True)))
    return found


def coded(rows: torch.Tensor) -> np.ndarray:
    """One sortable number for each row ``[n, D]``: the bits of its first four channels."""
    return np.ascontiguousarray(rows[:, :4].numpy()).view(np.complex128)[:, 0]


def theirs(make: Callable[[], Peer], forwards: list[Forward], late: bool) -> Iterator[list[Rows]]:
    """The rows held at the prompt's end and after each step, for each head."""
    peer, keys = make(), torch.cat([forward.keys[0] for forward in forwards], dim=1)
    for number, forward in enumerate(forwards):
        held = positions(peer(forward), keys)
        if not late:
            yield held
        elif number:
            yield [{place: row for place, row in rows.items() if place != forward.start} for rows in held]


def late(pair: Pair) -> bool:
    """Theirs evicts inside the forward after."""
    return bool(getattr(getattr(official, pair.theirs.partition(".")[2], None), "late", False))


def forwards_of(pair: Pair, recording: Recording, budget: int, layer: int, text: int) -> list[Forward]:
    """The prompt and the tokens after it, as theirs is given them."""
    tensors, about, model, *_ = recording
    place = about["layers"].index(layer)
    arrays = [torch.from_numpy(tensors[name][place, text])[None] for name in TENSORS]
    if pair.heads == "each":
        group = arrays[0].shape[1] // arrays[1].shape[1]
        arrays[1:3] = (array.repeat_interleave(group, dim=1) for array in arrays[1:3])
    steps = about["steps"] if pair.decode else 0
    prompt = budget if pair.merges else about["prompt"]
    ends = [0, *range(prompt, prompt + steps + 1 + late(pair))]
    random = [torch.from_numpy(tensors[name][place]) for name in ("noise", "draws")]
    module = model.model.layers[layer].self_attn
    return [
        Forward(*(array[..., first:last, :] for array in arrays), first, module, *random)
        for first, last in pairwise(ends)
    ]


def compared(
    pair: Pair, number: int, budget: int, ours: Any, make: Callable[[], Peer], recording: Recording
) -> np.ndarray:
    """Shares of equal rows ``[moment, set]``; ours is what record.py wrote of all pairs, budgets, layers."""
    shares = []
    for layer, text in product(recording.about["layers"], range(len(recording.about["texts"]))):
        kept, values = (ours.get(f"{number} {budget} {layer} {name}") for name in ("position", "values"))
        forwards = forwards_of(pair, recording, budget, layer, text)
        if pair.theirs == "official.keyformer" and not recording.failures:
            recording.failures.update(official.keyformer_that_drops(forwards, budget, 10))
        each = []
        for moment, held in enumerate(theirs(make, forwards, late(pair))):
            each.append(
                [
                    equal(mine, rows, None if values is None else values[moment, text, head])
                    for head, (mine, rows) in enumerate(zip(kept[moment, text], held, strict=True))
                ]
            )
        shares.append(each)
    return np.concatenate(shares, axis=1)


def equal(mine: np.ndarray, rows: Rows, values: np.ndarray | None) -> float:
    """The share of rows in both, of the same values if given; ours are ``[n]``, -1 where there is none."""
    both = [(slot, place) for slot, place in enumerate(mine.tolist()) if place in rows]
    if values is not None:
        both = [(slot, place) for slot, place in both if np.allclose(values[slot], rows[place], CLOSE, CLOSE)]
    return len(both) / max(int((mine >= 0).sum()), len(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    about = json.loads((given.folder / "about.json").read_text())
    if about["pairs"] != [pair.name for pair in PAIRS]:
        raise ValueError("the pairs changed since the recording: run record.py again")
    tensors = dict(np.load(given.folder / "tensors.npz"))
    kept = np.load(given.folder / "ours.npz")
    model = LlamaForCausalLM.from_pretrained(given.folder / "model")
    recording, results = Recording(tensors, about, model, {}), []
    for number, pair in enumerate(PAIRS):
        print(pair.name)
        for budget in about["budgets"]:
            make = maker(pair, model, budget)
            shares = compared(pair, number, budget, kept, make, recording)
            found = {"budget": budget, "sets": shares.shape[1]}
            if not pair.merges:  # nothing goes at the end of its prompt
                found["prompt"] = figures(shares[0])
            if pair.decode:
                found["decode"] = figures(shares[1:])
            parts = np.split(shares, len(about["layers"]), axis=1)
            found["layers that differ"] = [
                layer for layer, part in zip(about["layers"], parts, strict=True) if (part < 1).any()
            ]
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
        "recording": {key: about[key] for key in ("texts", "prompt", "steps", "budgets", "layers")},
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
