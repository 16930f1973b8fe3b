"""What several commands show alike: tables, and a bar for what takes its time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

EMBEDDED = "embedded"
WIDE = 160
"""Columns where no terminal sets their number: a line of a file or a pipe is not broken."""


def table(rows: Sequence[Mapping[str, str]], *, head: bool = True) -> None:
    """Print rows under the names of the first; numbers stand to the right. Colour on terminals only."""
    drawn = Table(box=None, pad_edge=False, show_header=head)
    for name in rows[0]:
        numeric = all(row[name][:1] in "+-0123456789" for row in rows)
        drawn.add_column(name, justify="right" if numeric else "left", no_wrap=name == next(iter(rows[0])))
    for row in rows:
        drawn.add_row(*row.values())
    console = Console()
    console.width = console.width if console.is_terminal else max(console.width, WIDE)
    with console.capture() as printed:
        console.print(drawn, highlight=False, markup=False)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def report(text: str) -> None:
    """Print Markdown; lines of a narrow terminal are wrapped rather than names cut short."""
    console = Console()
    console.width = max(console.width, 140)
    console.print(Markdown(text))


def loading(model: str) -> AbstractContextManager[object]:
    """A bar while a model is read; one that is fetched first has bars of its own."""
    return progress("loading") if model == EMBEDDED or Path(model).is_dir() else nullcontext()


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A bar on standard error, where that is a terminal; yields what moves it on. Without a total it swings.

    Yields:
        (steps, what is done now, if that changed) -> None
    """
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)

        def advance(steps: int, now: str = label) -> None:
            bar.update(task, advance=steps, description=now)

        yield advance
