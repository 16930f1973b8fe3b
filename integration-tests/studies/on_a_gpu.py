"""Decode steps, prompts and a long text on a GPU, as ``vqx bench`` times them, all in one process.

Llama-3.2-1B's shapes in bfloat16, random weights. A line of JSON for each contender; what a GPU has no time
or room for is named and left out.

    python integration-tests/studies/on_a_gpu.py OUT.jsonl [SECONDS]
"""

import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from vqx.settings import settings
from vqx_bench import runs
from vqx_bench.circumstances import circumstances
from vqx_bench.contenders import evicting, plain, rotating
from vqx_bench.filling import sizes_of
from vqx_bench.shapes import Subject, subject

MODEL, STEPS = "llama-3.2-1b", 32
ALL, TWO, PROMPTS = "streaming-llm h2o tova", "h2o tova", "streaming-llm tova snapkv h2o keyformer"


class Setting(NamedTuple):
    """What is timed together, in turns."""

    what: str  # decode, prompt, or context: a step after a long text
    sequences: int
    rows: int
    methods: str
    rounds: int
    tokens: int = 0
    positions: str = "absolute"


SETTINGS = [
    *(Setting("decode", batch, 512, ALL, 20) for batch in (8, 16, 1)),
    *(Setting("decode", batch, 2048, ALL, 20) for batch in (8, 16, 1)),
    *(Setting("decode", batch, 8192, ALL, 20) for batch in (1, 8)),
    Setting("prompt", 1, 512, PROMPTS, 20, 2048),
    Setting("prompt", 1, 512, PROMPTS, 12, 8192),
    Setting("decode", 1, 512, TWO, 20, positions="compact"),
    Setting("decode", 1, 512, "keyformer morphkv", 10),
    Setting("decode", 1, 512, "snapkv chunkkv(snapkv)", 5),
    Setting("decode", 16, 8192, ALL, 12),
    Setting("prompt", 1, 512, "tova snapkv h2o", 5, 32768),
    Setting("context", 1, 512, TWO, 12, 32768),
    Setting("context", 16, 512, TWO, 8, 32768),
]


def rows_of(told: Subject, one: Setting) -> Iterator[runs.Row]:
    """What ``vqx bench`` gives of a setting."""
    how, sizes = runs.Setting(STEPS, one.rounds, one.sequences), sizes_of(told.model)
    intervals = {"decode": (1, 32), "prompt": (1,), "context": (32,)}[one.what]
    ours = [
        evicting(told.model, method, one.rows, {"interval": interval, "positions": one.positions})
        for method in settings(one.methods.split())
        for interval in intervals
    ]
    if one.what == "prompt":
        return runs.prompt(told, [plain(told.model), *ours], one.rows, one.tokens, how)
    every = [plain(told.model), rotating(told.model, one.rows), *ours]
    if one.what == "context":
        return runs.context(told, sizes, every, one.rows, one.tokens, how)
    return runs.decode(told, sizes, every, one.rows, how)


def measure(told: Subject, chosen: Sequence[Setting], end: float) -> Iterator[dict[str, Any]]:
    """The rows of each setting that begins before ``end``, as JSON holds them."""
    for one in chosen:
        name = f"{one.what} {one.sequences} x {one.rows} {one.tokens or ''} {one.positions}"
        if time.monotonic() > end:
            print(f"no time for {name}", flush=True)
            continue
        start = time.monotonic()
        try:
            for row in rows_of(told, one):
                found = row.measured
                reached = "" if row.reached is None else f", {row.reached:.2f} of the bound"
                print(
                    f"{name} {row.contender}: {found.median:.2f} ms, {found.ratio:.3f}{reached}", flush=True
                )
                yield {"setting": one._asdict(), **row.told()}
        except RuntimeError as error:  # no room on this GPU
            print(f"{name}: {error}", flush=True)
        print(f"-- {time.monotonic() - start:.0f} s", flush=True)
        gc.collect()
        mx.clear_cache()


def main() -> None:
    if mx.default_device() == mx.cpu:
        print("no GPU here: vqx bench times a CPU")
        return
    out, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
    end = time.monotonic() + seconds
    with out.open("w", encoding="utf-8") as file:
        file.write(json.dumps({**circumstances(), "model": MODEL, "steps": STEPS}) + "\n")
        for row in measure(subject(MODEL), SETTINGS, end):
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
