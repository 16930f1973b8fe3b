"""The hooks that a plugin may implement; they run when something is set up, never per token."""

from collections.abc import Iterable

import click
import pluggy

from vqx.spec import Collapse, MethodSpec

hookspec = pluggy.HookspecMarker("vqx")
hookimpl = pluggy.HookimplMarker("vqx")


class Hooks:
    """Everything that the core asks of plugins."""

    @hookspec
    def vqx_methods(self) -> Iterable[MethodSpec]:  # type: ignore[empty-body]
        """The eviction methods of this plugin."""

    @hookspec
    def vqx_collapses(self) -> Iterable[Collapse]:  # type: ignore[empty-body]
        """Settings at which a method of this plugin equals another method."""

    @hookspec
    def vqx_commands(self) -> Iterable[click.Command]:  # type: ignore[empty-body]
        """Subcommands of ``vqx``, each declared in the entry-point group ``vqx.commands`` by its name."""
