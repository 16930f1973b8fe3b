"""Every method of ours beside mlx-lm's rotating cache, VeloxQuant-MLX and kvpress: one run, the same prompts.

Measures the embedded model on texts that no choice was made with (``collect_texts.py`` writes them), in
pieces that a run which is started again does not repeat; several processes may share the work. Then
``--report`` puts the pieces together: ``docs/results/comparison.json``, pictures, and the tables of
``docs/comparison.md``.

    python integration-tests/studies/comparison.py --texts texts/report --out pieces/0 --part 0/2
    python integration-tests/studies/comparison.py --report pieces/0 pieces/1
"""

import argparse
import json
import platform
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlx.core as mx
from compared import ours, repeated
from compared.ours import Cell
from vqx.host.embedded import load_embedded
from vqx_eval import Engine, Job, open_store, run, tasks_named, wanted
from vqx_eval.candidates import FULL, ROTATING
from vqx_eval.samples import batches
from vqx_eval.store import Store
from vqx_eval.texts import load_texts

SEED = 1  # choices were made with seed 0
WAVE = 8  # candidates that share one reading of the full cache
ENGINES = ("ours", "mlx", "velox", "kvpress")
SAMPLES = {"continuation": 48}  # one a text; else 60
VERSIONS = ("vqx", "mlx", "mlx-lm", "veloxquant-mlx", "kvpress", "torch", "transformers")


class Clock:
    """Says when no more may be begun: when what took longest so far would not end in time."""

    def __init__(self, seconds: float) -> None:
        self.end, self.longest, self.begun, self.index = time.monotonic() + seconds, 0.0, 0.0, 0

    def begin(self, title: str, done: int) -> None:
        now = time.monotonic()
        if self.begun:
            self.longest = max(self.longest, now - self.begun)
        if now + self.longest > self.end:
            raise TimeoutError
        self.begun, self.index = now, done
        print(f"{self.end - now:6.0f} s left  {title}", flush=True)


def cells(engine: Engine, tokenizer: Any, engines: Sequence[str], budgets: Sequence[int]) -> list[Cell]:
    """Everything that is to be compared, the engines mixed so that all end at the same time."""
    lists: list[list[Cell]] = []
    if "ours" in engines:
        lists.append([Cell(FULL, lambda protocol: engine.full()), *ours.cells(engine, budgets)])
        lists.append([*repeated.cells(engine, tokenizer, budgets)])
    if "mlx" in engines:
        bounded = [Cell(ROTATING, lambda protocol, n=budget: engine.rotating(n)) for budget in budgets]
        lists.append(bounded)
    if "velox" in engines:
        from compared import velox

        lists.append([*velox.cells(engine, budgets)])
    if "kvpress" in engines:
        from compared import presses

        lists.append([*presses.cells(engine, budgets)])
    placed = [(place / len(some), cell) for some in lists for place, cell in enumerate(some)]
    return [cell for _, cell in sorted(placed, key=lambda both: both[0])]


def measure(given: argparse.Namespace) -> None:
    mx.set_cache_limit(int(3e9))
    mx.set_memory_limit(int(given.memory * 1e9))
    clock = Clock(given.seconds)
    ours.register_sources()
    model, tokenizer = load_embedded()
    engine = Engine(model)
    store = open_store(given.out)
    todo = list(jobs(given, engine, tokenizer))
    about = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()} {platform.system()}, {device()}",
        "python": platform.python_version(),
        "versions": {name: found for name in VERSIONS if (found := installed(name))},
        "texts": sorted(Path(name).name for name in load_texts(given.texts)),
        "seed": SEED,
        "prompt tokens": given.prompt_tokens,
        "engines": given.engines,
    }
    if "kvpress" in given.engines:
        from compared import presses

        about["logits apart"] = presses.apart(
            engine, [sample.context for sample in todo[0].batch.samples[:2]]
        )
        print(f"full cache, transformers and mlx-lm: logits {about['logits apart']:.1e} apart")
        if about["logits apart"] > presses.NEAR:
            raise ValueError("transformers and mlx-lm do not agree on the full cache")
    (given.out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    part, parts = map(int, given.part.split("/"))
    asked = cells(engine, tokenizer, given.engines, given.budgets)
    own = [cell for cell in asked if re.search(given.only, cell.label)][part::parts]
    try:
        for first in range(0, len(own), WAVE):
            for job in todo:
                among = [cell.make(job.batch.protocol) for cell in own[first : first + WAVE]]
                attempt(job._replace(candidates=among), store, clock)
    except TimeoutError:
        print("time is up: what is missing is not measured")


def jobs(given: argparse.Namespace, engine: Engine, tokenizer: Any) -> Iterator[Job]:
    """The batches of all tasks; all samples are for reporting, since the texts and the seed are."""
    texts = load_texts(given.texts)
    for task in tasks_named(given.tasks):
        samples = given.samples or SAMPLES.get(task.name, 60)
        made = task.make(
            wanted(tokenizer, texts=texts, samples=samples, length=given.prompt_tokens, seed=SEED)
        )
        for protocol in task.protocols:
            for batch in batches(made, protocol, given.batch):
                yield Job(("embedded", engine.chunk), task, batch, engine.full(), False, [])


def attempt(job: Job, store: Store, clock: Clock) -> None:
    """Measure a job's candidates; one that fails is noted with its words, and the others go on."""
    while True:
        try:
            pieces = run([job], store, begin=clock.begin)
            break
        except TimeoutError:
            raise
        except Exception as error:
            traceback.print_exc()
            failed: Any = job.candidates[clock.index]
            why = {"label": failed.label, "budget": failed.budget, "skipped": f"failed: {error}"[:300]}
            job.candidates[clock.index] = why
    for piece in pieces:
        if "skipped" in piece:
            place = (piece[name] for name in ("task", "protocol", "label", "budget"))
            store.add({"key": " ".join(map(str, place)), **piece})


def device() -> str:
    if mx.default_device() == mx.cpu:
        return "CPU"
    return str(mx.device_info().get("device_name", "GPU"))


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def names(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, nargs="+", default=[Path("texts/report")])
    parser.add_argument("--out", type=Path, default=Path("pieces"))
    parser.add_argument("--part", default="0/1", help="i/n: every n-th candidate from the i-th on")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing that would end later")
    parser.add_argument("--engines", type=names, default=list(ENGINES))
    parser.add_argument("--only", default="", help="a regular expression that labels must contain")
    parser.add_argument("--budgets", type=numbers, default=[128, 256, 512, 1024])
    parser.add_argument("--tasks", default="continuation,passkey,needle-prose")
    parser.add_argument("--samples", type=int, help="default: 48 texts, 60 needles")
    parser.add_argument("--prompt-tokens", type=int, default=1536)
    parser.add_argument("--batch", type=int, default=16, help="samples read at once (20 GB at most)")
    parser.add_argument("--memory", type=float, default=28, help="GB for MLX")
    parser.add_argument("--report", type=Path, nargs="+", help="folders of pieces, or files of them")
    parser.add_argument("--docs", type=Path, default=Path(__file__).parents[2] / "docs")
    given = parser.parse_args()
    if given.report:
        from compared.report import write

        write(given.report, given.docs)
    else:
        measure(given)


if __name__ == "__main__":
    main()
