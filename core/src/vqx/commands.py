"""Subcommands found by name: entry points of the group ``vqx.commands``, imported when they are run.

``vqx --help`` shows each with its package's own summary, so listing them imports no plugin either.
"""

import difflib
from importlib.metadata import EntryPoint, entry_points

import click
import pluggy

from vqx.hookspecs import Hooks

GROUP = "vqx.commands"


class Commands(click.Group):
    """A group whose own commands come first, then those of the packages installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *sorted({entry.name for entry in _entries(self)})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = [entry for entry in _entries(self) if entry.name == cmd_name]
        return load(found) if found else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Try: pip install vqx-{name}"
            ctx.fail(f"no command {name!r}; there are: {', '.join(known)}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.commands[name].get_short_help_str(90)) for name in sorted(self.commands)]
        rows += sorted({(entry.name, _summary(entry)) for entry in _entries(self)})
        with formatter.section("Commands"):
            formatter.write_dl(rows)


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


def _entries(group: click.Group) -> list[EntryPoint]:
    return [entry for entry in entry_points(group=GROUP) if entry.name not in group.commands]


def _owner(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _summary(entry: EntryPoint) -> str:
    return str(entry.dist.metadata["Summary"]) if entry.dist else ""
