"""What several commands ask for in the same words: a model, a method with its options, JSON, pictures."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
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


plugin_option = click.option(
    "--plugin",
    multiple=True,
    help="Import this module's methods without its being installed (for a checkout).",
)


def explained(help: Mapping[str, str]) -> Callable[..., Callable[[Any], Any]]:
    """``click.option`` by the name alone, its default shown, its help looked up."""

    def option(name: str, **rest: Any) -> Callable[[Any], Any]:
        return click.option(f"--{name}", show_default=True, help=help[name], **rest)

    return option


def plots_flag(package: str) -> Callable[[Any], Any]:
    """``--plots`` of a package whose extra ``plots`` brings matplotlib."""
    return click.option("--plots", is_flag=True, help=f"Draw pictures into --out (needs {package}[plots]).")


def drawing(module: str, name: str, asked: str) -> Any:
    """What draws, from a module that wants matplotlib.

    Args:
        asked: the option that asks for it, which an error names.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        package = module.partition(".")[0].replace("_", "-")
        raise ModuleNotFoundError(f"{asked} needs matplotlib: pip install '{package}[plots]'") from error


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
