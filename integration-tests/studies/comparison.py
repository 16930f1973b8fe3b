"""Every method of ours beside mlx-lm's rotating cache, VeloxQuant-MLX and kvpress: one run, the same prompts.

Measures the embedded model on texts that no choice was made with (``collect_texts.py`` writes them), in
pieces that a run which is started again does not repeat; processes that share a folder of claims share the
work, and ``--known`` pieces are not measured again, whatever their batches were; ``--missing`` says what is
left. A process that a full machine refuses memory ends there. Then ``--report`` puts the pieces together:
``docs/results/comparison`` and its ``.json``, pictures, and the tables of ``docs/comparison.md``.

    python integration-tests/studies/comparison.py --texts texts/report --out pieces/0 --claims claims &
    python integration-tests/studies/comparison.py --texts texts/report --out pieces/1 --claims claims &
    wait; python integration-tests/studies/comparison.py --report docs/results/comparison pieces/0 pieces/1
"""

import argparse
import json
import platform
import re
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import vqx  # noqa: F401  (before MLX: it shows MLX an optimised BLAS)

# isort: split
import mlx.core as mx
from compared import ours, repeated
from compared.ours import Cell
from vqx.host.embedded import load_embedded
from vqx.state import attention
from vqx_eval import Engine, Job, open_store, run, tasks_named, wanted
from vqx_eval.candidates import FULL, ROTATING
from vqx_eval.samples import batches, digest
from vqx_eval.store import Store
from vqx_eval.task import Reference
from vqx_eval.texts import load_texts

SEED = 1  # choices were made with seed 0
ENGINES = ("ours", "mlx", "velox", "kvpress")
SAMPLES = {"continuation": 48}  # one a text; else 60
LATER = {"needle-prose", "instruction"}  # tasks that wait until every setting has done the others
TILE = 2**24  # logits of a score held at once (CUDA: 4 times): a batch is cut less, with the same scores
VERSIONS = ("mlx", "mlx-lm", "veloxquant-mlx", "kvpress", "torch", "transformers")


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


class Work(NamedTuple):
    """One setting at one budget on one batch."""

    cell: Cell
    job: Job
    name: str


def queue(todo: Sequence[Job], cells: Sequence[Cell], budgets: Sequence[int]) -> list[Work]:
    """All work, the most wanted first: the settings that matter most, then budget by budget all others."""

    def rank(work: Work) -> tuple[int, int]:
        cell, job, _ = work
        place = budgets.index(cell.budget) if cell.budget in budgets else 0
        return (0, 0) if cell.rank == 0 else (2 * cell.rank + (job.task.name in LATER), place)

    found = [
        Work(cell, job, digest([number, job.task.name, job.batch.protocol, cell.label, cell.budget]))
        for cell in cells
        for number, job in enumerate(todo)
    ]
    return sorted(found, key=rank)


def cells(engine: Engine, tokenizer: Any, engines: Sequence[str], budgets: Sequence[int]) -> Iterator[Cell]:
    """Everything that is to be compared."""
    if "ours" in engines:
        yield Cell(FULL, None, lambda protocol: engine.full(), rank=0)
        yield from ours.cells(engine, budgets)
        yield from repeated.cells(engine, tokenizer, budgets)
    if "mlx" in engines:
        for budget in budgets:
            yield Cell(ROTATING, budget, lambda protocol, n=budget: engine.rotating(n), rank=0)
    if "velox" in engines:
        from compared import velox

        yield from velox.cells(engine, budgets)
    if "kvpress" in engines:
        from compared import presses

        yield from presses.cells(engine, budgets)


def measured(sources: Sequence[Path]) -> dict[tuple[Any, ...], set[int]]:
    """The samples that earlier runs measured of each setting, whatever their batches were."""
    from compared.report import pieces_of, place

    numbers: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for piece in pieces_of(sources):
        numbers[place(piece)] |= {sample["number"] for sample in piece["samples"]}
    return numbers


def measure(given: argparse.Namespace) -> None:
    mx.set_cache_limit(int(given.memory * 2e8))
    mx.set_memory_limit(int(given.memory * 1e9))
    attention.TILE = TILE
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
    if not given.missing:
        (given.out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    everything = cells(engine, tokenizer, given.engines, given.budgets)
    asked = [cell for cell in everything if re.search(given.only, cell.label)]
    forget_claims(given.claims, given.out)
    known = measured(given.known)
    for cell, job, name in queue(todo, asked, given.budgets):
        place = job.task.name, job.batch.protocol, cell.label, cell.budget
        left = {sample.number for sample in job.batch.samples} - known.get(place, set())
        if given.missing and left:
            print(f"{job.task.name} {job.batch.protocol}, {cell.label} at {cell.budget}: {len(left)} samples")
        if given.missing or not left:
            continue
        claim = given.claims / name
        if not taken(claim, given.out):
            continue
        try:
            done = attempt(job._replace(candidates=[cell.make(job.batch.protocol)]), store, clock)
        except (TimeoutError, MemoryError) as error:
            claim.unlink()
            print(f"{str(error) or 'time is up'}: what is missing is not measured")
            sys.exit(isinstance(error, MemoryError))
        if not done:  # for the next run to try again
            claim.unlink()


def taken(claim: Path, out: Path) -> bool:
    """Whether a claim is now that of the process that writes to ``out``, and was nobody's before."""
    try:
        with claim.open("x") as mine:
            mine.write(str(out))
    except FileExistsError:
        return False
    return True


def forget_claims(claims: Path, out: Path) -> None:
    """Free what a process that wrote to ``out``, and died, had claimed."""
    claims.mkdir(parents=True, exist_ok=True)
    for claim in claims.iterdir():
        if claim.read_text() == str(out):
            claim.unlink()


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
                reference = Reference(full=engine.full(), batch=batch)
                yield Job(("embedded", engine.chunk), task, batch, reference, False, [])


def attempt(job: Job, store: Store, clock: Clock) -> bool:
    """Measure a job's candidate; one that fails is noted with its words, and the others go on."""
    (candidate,) = job.candidates
    try:
        pieces = run([job], store, begin=clock.begin)
    except TimeoutError:
        raise
    except Exception as error:
        traceback.print_exc()
        if re.search("memory|allocat", str(error)):  # what a process measures after that cannot be trusted
            raise MemoryError(f"no room: {error}"[:300]) from error
        failed: Any = candidate
        why = {"label": failed.label, "budget": failed.budget, "skipped": f"failed: {error}"[:300]}
        pieces = run([job._replace(candidates=[why])], store, begin=clock.begin)
    for piece in pieces:
        if "skipped" in piece:
            place = (piece[name] for name in ("task", "protocol", "label", "budget"))
            store.add({"key": " ".join(map(str, place)), **piece})
    return not any(piece.get("skipped", "").startswith("failed") for piece in pieces)


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
    parser.add_argument(
        "--claims", type=Path, default=Path("claims"), help="a folder in which processes say what they took"
    )
    parser.add_argument(
        "--known", type=Path, nargs="+", default=[], help="folders of pieces that are not measured again"
    )
    parser.add_argument("--missing", action="store_true", help="say what would be measured; measure nothing")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing that would end later")
    parser.add_argument("--engines", type=names, default=list(ENGINES))
    parser.add_argument("--only", default="", help="a regular expression that labels must contain")
    parser.add_argument("--budgets", type=numbers, default=[256, 512, 128, 1024])
    parser.add_argument("--tasks", default="continuation,passkey,needle-prose,instruction")
    parser.add_argument("--samples", type=int, help="default: 48 texts, 60 needles")
    parser.add_argument("--prompt-tokens", type=int, default=1536)
    parser.add_argument("--batch", type=int, default=60, help="samples read at once")
    parser.add_argument("--memory", type=float, default=40, help="GB for MLX")
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
