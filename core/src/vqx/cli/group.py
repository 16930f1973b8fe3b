"""Commands found by name: modules of ``vqx.cli.commands``, then entry points of the group ``vqx.commands``.

A package's command is imported when it is run: ``vqx --help`` and completion show each with its package's
own summary and import no plugin.
"""

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click
import pluggy
from click.shell_completion import CompletionItem

from vqx.cli import commands as own
from vqx.hookspecs import Hooks
from vqx.known import hint
from vqx.registry import PluginError

GROUP = "vqx.commands"


class Refused(click.ClickException):
    """What was asked for cannot be: another use of the command would do (exit code 2)."""

    exit_code = 2


class Commands(click.Group):
    """A group whose own commands come first, then those of the packages installed.

    Errors that the library raises for users are printed as such, without a traceback: a ``ValueError`` is a
    wrong use (exit code 2); a plugin, a package or a file that is missing or broken is a failure (1).
    """

    def invoke(self, ctx: click.Context) -> Any:
        with in_words():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_own(), *sorted({entry.name for entry in _entries()})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _own():
            command: click.Command = import_module(f"{own.__name__}.{cmd_name}").command
            command.name = cmd_name
            return command
        found = [entry for entry in _entries() if entry.name == cmd_name]
        return load(found) if found else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            ctx.fail(f"no command {name!r}; there are: {', '.join(known)}. {hint(name, known, 'commands')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self._summaries(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        options = click.Command.shell_complete(self, ctx, incomplete)
        rows = self._summaries(ctx)
        return [
            CompletionItem(name, help=what) for name, what in rows if name.startswith(incomplete)
        ] + options

    def _summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        commands = [(name, self.get_command(ctx, name)) for name in _own()]
        rows = [(name, command.get_short_help_str(90)) for name, command in commands if command]
        return rows + sorted({(entry.name, _summary(entry)) for entry in _entries()})


def load(entries: list[EntryPoint]) -> click.Command:
    """The command of that name; only its package is imported.

    Raises:
        click.ClickException: two packages bring it, or its package is broken or brings another.
    """
    owners = sorted({_owner(entry) for entry in entries})
    entry = entries[0]
    if len(owners) > 1:
        raise click.ClickException(f"{entry.name!r} comes from {' and '.join(owners)}: uninstall one of them")
    try:
        plugin = entry.load()
        manager = pluggy.PluginManager("vqx")
        manager.add_hookspecs(Hooks)
        manager.register(plugin)
        manager.check_pending()
        commands = {command.name: command for several in manager.hook.vqx_commands() for command in several}
    except Exception as error:
        raise click.ClickException(
            f"{owners[0]} could not be loaded for the command {entry.name!r}: {type(error).__name__}: {error}"
        ) from error
    if entry.name not in commands:
        brings = ", ".join(map(repr, commands)) or "none"
        raise click.ClickException(f"{owners[0]} declares the command {entry.name!r} and brings {brings}")
    found: click.Command = commands[entry.name]
    return found


@contextmanager
def in_words() -> Iterator[None]:
    """Errors for users without a traceback, also where a command runs outside of the group."""
    try:
        yield
    except ValueError as error:
        raise Refused(str(error)) from error
    except BrokenPipeError:  # somebody read the first lines and left, as head does
        raise
    except (PluginError, ModuleNotFoundError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _own() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(own.__path__))


def _entries() -> list[EntryPoint]:
    return [entry for entry in entry_points(group=GROUP) if entry.name not in _own()]


def _owner(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _summary(entry: EntryPoint) -> str:
    """What the package says of itself, less its name."""
    said = str(entry.dist.metadata["Summary"]) if entry.dist else ""
    what = said.partition(" for vqx: ")[2] or said
    return f"{what[0].upper()}{what[1:].rstrip('.')}." if what else ""
