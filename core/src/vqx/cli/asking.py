"""What several commands ask for in the same words: a model, a method with its options, JSON."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vqx.registry import registry
from vqx.settings import check, settings
from vqx.spec import Setting

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

model_option = click.option(
    "--model",
    default="embedded",
    show_default=True,
    help="A folder or repository that mlx_lm.load takes; 'embedded' is SmolLM2-135M out of a wheel.",
)


class MethodType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, and 8.1 will do
    """A method as it is written on a command line: ``h2o``, ``ada(snapkv)``, ``h2o:decay=0.98,recent=32``.

    Its value is a :class:`vqx.Setting`. A method or an option that is not known is refused (exit code 2),
    with the nearest right one.
    """

    name = "method"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Setting:
        if isinstance(value, Setting):
            return value
        try:
            (setting,) = settings([value])
            check(setting)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return setting

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in registry.names() if name.startswith(incomplete)]


METHOD = MethodType()


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal; yields what moves it by a number of steps."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)
