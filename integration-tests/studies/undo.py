"""What tokens that can be taken back cost: bytes held by caches with ``undo``, beside those without.

    uv run python integration-tests/studies/undo.py [METHOD...]

Two layers of four heads of 64 in float32, 256 rows; 300 tokens are read, 40 one by one, then at once one more
than can be taken back. Seconds.
"""

import sys

import vqx  # isort: skip  # before mlx

import mlx.core as mx
from mlx_lm.models import llama

BUDGET, DEPTHS = 256, (1, 3, 5, 8)
SHAPE = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 97,
}


def held(model: llama.Model, method: str, undo: int) -> int:
    """Bytes of all layers."""
    caches = vqx.make_cache(model, method, budget=BUDGET, undo=undo)
    text = mx.random.randint(0, 97, (1, 400), key=mx.random.key(0))
    start = 0
    for length in (300, *[1] * 40, undo + 1):
        logits = model(text[:, start : start + length], cache=caches)
        mx.eval(logits, [cache.state for cache in caches])
        start += length
    return sum(cache.nbytes for cache in caches)


def main() -> None:
    model = llama.Model(llama.ModelArgs.from_dict(SHAPE))
    print("| method | bytes without | " + " | ".join(f"undo={undo}" for undo in DEPTHS) + " |")
    for method in sys.argv[1:] or ("h2o", "tova", "morphkv", "streaming-llm", "expected-attention"):
        plain = held(model, method, 0)
        times = [f"{held(model, method, undo) / plain:.2f}" for undo in DEPTHS]
        print(f"| {method} | {plain:,} | " + " | ".join(times) + " |")


if __name__ == "__main__":
    main()
