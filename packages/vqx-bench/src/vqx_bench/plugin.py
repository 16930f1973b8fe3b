"""What the plugin registers; the command is imported inside the hook, so that discovery costs nothing."""

import click
import vqx


@vqx.hookimpl
def vqx_commands() -> list[click.Command]:
    from vqx_bench.command import command

    return [command]
