"""What rounding rows costs beside evicting them: loss of the embedded model by bits of a row's number.

A prompt of 512 tokens of each of three texts, read in chunks of 256, then the next 128 in one forward, with
groups of 64; weights and everything else in float32.

    python integration-tests/studies/fewer_bits.py
"""

import argparse
from pathlib import Path

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx.nn as nn
from vqx.host.embedded import load_embedded
from vqx.host.layers import own_caches

TEXTS = Path(__file__).parent.parent / "texts"
PROMPT, CHUNK, NEXT = 512, 256, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="*", default=["h2o"])
    parser.add_argument("--budget", type=int, default=256)
    asked = parser.parse_args()
    model, tokenizer = load_embedded()
    texts = [tokenizer.encode(file.read_text())[: PROMPT + NEXT] for file in sorted(TEXTS.glob("*.txt"))]

    def loss(method: str | None, bits: int | None) -> tuple[float, float]:
        """Nats a token over all texts, and megabytes of rows kept."""
        losses, held = [], 0.0
        for text in texts:
            tokens = mx.array([text])
            caches = own_caches(model)
            if method is not None:
                caches = vqx.make_cache(model, method, budget=asked.budget, bits=bits)
            for first in range(0, PROMPT, CHUNK):
                model(tokens[:, first : first + CHUNK], cache=caches)
                mx.eval([cache.state for cache in caches])
            held = sum(cache.nbytes if method is None else cache.kept_bytes for cache in caches) / 1e6
            logits = model(tokens[:, PROMPT:-1], cache=caches)
            losses.append(nn.losses.cross_entropy(logits[0], tokens[0, PROMPT + 1 :]).mean())
        return mx.mean(mx.stack(losses)).item(), held

    full, held = loss(None, None)
    device = mx.device_info().get("device_name")
    print(f"mlx {mx.__version__} on {device}, {len(texts)} texts, budget {asked.budget}")
    print("\n| method | bits | MB of rows | loss above the full cache's, nats a token |\n|---|---|---|---|")
    print(f"| full cache | 32 | {held:.1f} | 0 ({full:.3f}) |", flush=True)
    for method in asked.methods:
        for bits in (None, 8, 6, 4, 3, 2):
            found, held = loss(method, bits)
            print(f"| {method} | {bits or 32} | {held:.1f} | {found - full:+.3f} |", flush=True)


if __name__ == "__main__":
    main()
