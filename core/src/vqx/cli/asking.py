"""What several commands ask for in the same words: a model, a method with its options, JSON."""

import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

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


def read_prompt(prompt: str) -> str:
    """A prompt as it was given; ``-`` reads standard input.

    Raises:
        click.UsageError: nothing to read.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise click.UsageError("the prompt is empty: give some words, or - and a text on standard input")
    return text
