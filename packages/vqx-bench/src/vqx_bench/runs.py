"""What is timed: a decode step, its graph alone, the caches' update alone, a prompt, a long context."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx

from vqx_bench.contenders import PLAIN, ROTATING, Contender
from vqx_bench.filling import Sizes, drawn, fill, update
from vqx_bench.measuring import Measured, alternate, milliseconds
from vqx_bench.patience import TooLong, within
from vqx_bench.shapes import Subject
from vqx_bench.witness import named, rows_kept, scoring

CHUNK = 2048


class Row(NamedTuple):
    """One contender under one setting."""

    what: str
    sequences: int
    rows: int  # kept per layer; where nothing is evicted, all
    tokens: int  # of context
    contender: str
    measured: Measured
    kernel: str
    reached: float | None = None
    """Of the speed-up that the bytes allow over the full cache, the part that was measured."""

    def told(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**self._asdict(), "measured": self.measured._asdict()}


class Setting(NamedTuple):
    """How long and how often."""

    steps: int
    rounds: int
    batch: int
    clock: str = "wall"
    left: Callable[[str], object] = str  # told of contenders that took too long


def decode(
    subject: Subject, sizes: Sequence[Sizes], contenders: Sequence[Contender], rows: int, how: Setting
) -> Iterator[Row]:
    """A decode step one ahead, as mlx-lm's generator has it, with full caches of ``rows`` rows."""
    filled = {one.label: _past(rows) if one.bounded else rows for one in contenders}
    running, kernels = _filled(sizes, contenders, how, filled)
    found = alternate(_stepping(subject, running, how), ROTATING, how.rounds)
    for one in _of(contenders, found):
        kept = rows_kept(running[one.label], rows, one.bounded)
        yield Row("decode", how.batch, kept, _past(rows), one.label, found[one.label], kernels[one.label])


def graph(
    subject: Subject, sizes: Sequence[Sizes], contenders: Sequence[Contender], rows: int, how: Setting
) -> Iterator[Row]:
    """What a decode step asks of Python alone: its graph is written down, and evaluated outside the clock."""
    filled = {one.label: _past(rows) if one.bounded else rows for one in contenders}
    running, kernels = _filled(sizes, contenders, how, filled)
    token = mx.zeros((how.batch, 1), mx.int32)

    def steps(name: str) -> float:
        spent = 0.0
        for _ in range(how.steps):
            start = time.perf_counter()
            logits = subject.step(token, running[name])
            spent += time.perf_counter() - start
            mx.eval(logits)
        return spent / how.steps * 1e3

    found = alternate({name: partial(steps, name) for name in running}, ROTATING, how.rounds)
    for one in _of(contenders, found):
        kept = rows_kept(running[one.label], rows, one.bounded)
        yield Row("graph", how.batch, kept, _past(rows), one.label, found[one.label], kernels[one.label])


def update_alone(
    sizes: Sequence[Sizes], contenders: Sequence[Contender], rows: int, how: Setting
) -> Iterator[Row]:
    """What a decode step asks of the caches, without a model: random queries, keys and values."""
    filled = {one.label: _past(rows) if one.bounded else rows for one in contenders}
    running, kernels = _filled(sizes, contenders, how, filled)
    new = {size: drawn(size, how.batch, 1) for size in set(sizes)}
    mx.eval(*new.values())

    def steps(name: str) -> float:
        def run() -> None:
            for _ in range(how.steps):
                mx.eval([update(cache, new[size]) for cache, size in zip(running[name], sizes, strict=True)])

        return milliseconds(run, how.steps, how.clock)

    found = alternate({name: partial(steps, name) for name in running}, ROTATING, how.rounds)
    for one in _of(contenders, found):
        kept = rows_kept(running[one.label], rows, one.bounded)
        yield Row("update", how.batch, kept, _past(rows), one.label, found[one.label], kernels[one.label])


def prompt(
    subject: Subject, contenders: Sequence[Contender], rows: int, tokens: int, how: Setting
) -> Iterator[Row]:
    """Reading a prompt of ``tokens`` tokens in mlx-lm's chunks; memory above the model's is the peak."""
    text = mx.random.randint(0, 1000, (how.batch, tokens), key=mx.random.key(1))
    mx.eval(text)

    def read(one: Contender) -> float:
        caches = one.make()
        with scoring() as served:
            took = milliseconds(partial(_read, subject, caches, text), clock=how.clock)
        seen[one.label] = rows_kept(caches, rows, one.bounded), _kernel(caches, served)
        del caches
        mx.clear_cache()
        return took

    seen: dict[str, tuple[int, str]] = {}
    quick = [one for one in contenders if one.patience is None or _reads(one, partial(read, one), how)]
    found = alternate({one.label: partial(read, one) for one in quick}, PLAIN, how.rounds)
    for one in quick:
        kept, kernel = seen[one.label]
        yield Row("prompt", how.batch, kept, tokens, one.label, found[one.label], kernel)


def context(
    subject: Subject,
    sizes: Sequence[Sizes],
    contenders: Sequence[Contender],
    rows: int,
    tokens: int,
    how: Setting,
) -> Iterator[Row]:
    """A decode step after a long text, against the full cache, and what the bytes read would allow."""
    filled = dict.fromkeys((one.label for one in contenders), tokens)
    running, kernels = _filled(sizes, contenders, how, filled)
    found = alternate(_stepping(subject, running, how), PLAIN, how.rounds)
    for one in _of(contenders, found):
        kept = rows_kept(running[one.label], rows, one.bounded)
        bound = bytes_read(subject, sizes, how.batch, kept) / bytes_read(subject, sizes, how.batch, tokens)
        reached = None if not one.bounded else bound / found[one.label].ratio
        kernel = kernels[one.label]
        yield Row("context", how.batch, kept, tokens, one.label, found[one.label], kernel, reached)


def bytes_read(subject: Subject, sizes: Sequence[Sizes], batch: int, rows: int) -> int:
    """What a step must read: the weights once, and every sequence's keys and values."""
    row = sum(size.heads * (size.width + size.value_width) * size.dtype.size for size in sizes)
    return subject.weight_bytes + batch * rows * row


def _past(rows: int) -> int:
    """Tokens after which a cache of so many rows has evicted."""
    return rows + min(rows // 8, 64)


def _of(contenders: Sequence[Contender], found: Mapping[str, Any]) -> list[Contender]:
    """Those that were not left out."""
    return [one for one in contenders if one.label in found]


def _reads(one: Contender, read: Callable[[], object], how: Setting) -> bool:
    """Whether a contender has the patience for what it reads; else it is named among those left out."""
    try:
        with within(one.patience):
            read()
    except TooLong:
        how.left(f"{one.label}, which took more than {one.patience:g} s to read its text")
        mx.clear_cache()
        return False
    return True


def _stepping(
    subject: Subject, running: dict[str, list[Any]], how: Setting
) -> dict[str, Callable[[], float]]:
    """What times some decode steps of each contender, each round going on where the last one ended."""
    last = {name: mx.zeros((how.batch, 1), mx.int32) for name in running}

    def steps(name: str) -> float:
        def run() -> None:
            last[name] = _steps(subject, running[name], last[name], how.steps)

        return milliseconds(run, how.steps, how.clock)

    return {name: partial(steps, name) for name in running}


def _filled(
    sizes: Sequence[Sizes], contenders: Sequence[Contender], how: Setting, tokens: dict[str, int]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Full caches, a token or an interval later, and by what those of vqx score a decode step."""
    running, found = {}, {}
    for one in contenders:
        caches = one.make()
        if not _reads(one, partial(fill, caches, sizes, how.batch, tokens[one.label]), how):
            continue
        running[one.label] = caches
        intervals = [cache.plan.options.interval for cache in caches if hasattr(cache, "plan")]
        with scoring() as served:
            for _ in range(max(intervals, default=0) + 1):
                read = [update(c, drawn(size, how.batch, 1)) for c, size in zip(caches, sizes, strict=True)]
                mx.eval(read)
        del read
        found[one.label] = _kernel(caches, served)
    return running, found


def _kernel(caches: Sequence[Any], served: set[str]) -> str:
    return named(served) if any(hasattr(cache, "plan") for cache in caches) else ""


def _steps(subject: Subject, caches: list[Any], token: mx.array, count: int) -> mx.array:
    before = None
    for _ in range(count):
        token = mx.argmax(subject.step(token, caches)[:, -1:], axis=-1) % 1000
        mx.async_eval(token)
        if before is not None:
            mx.eval(before)
        before = token
    mx.eval(token)
    return token


def _read(subject: Subject, caches: list[Any], text: mx.array) -> None:
    for first in range(0, text.shape[1], CHUNK):
        subject.step(text[:, first : first + CHUNK], caches)
        mx.eval([cache.state for cache in caches])
