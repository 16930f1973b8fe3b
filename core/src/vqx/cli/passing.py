"""Commands of mlx-lm's with every cache evicting: our options first, then all of theirs as they are."""

from typing import Any

import click

from vqx.cli.asking import METHOD
from vqx.spec import Setting


class Passing(click.Command):
    """A command that hands what it does not know to mlx-lm's parser, and whose help shows both."""

    ignore_unknown_options = True

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from vqx.host.mains import help_of

        super().format_epilog(ctx, formatter)
        theirs = {"serve": "server"}.get(ctx.info_name or "", ctx.info_name or "")
        with formatter.section(f"Options of mlx_lm.{theirs}, which may be given too"):
            formatter.write("\n".join(help_of(theirs).splitlines()[1:]) + "\n")


def evicting(command: Any) -> Any:
    """The options that say what evicts."""
    for option in (
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
        click.option(
            "--question",
            type=click.Choice(["later", "end"]),
            help="When a question about the text comes: the best method for it, where none is named.",
        ),
        click.option(
            "--budget", type=click.IntRange(1), default=1024, show_default=True, help="Rows per layer."
        ),
        click.option(
            "--method", type=METHOD, help="As h2o:recent=32,interval=8; the best for the question otherwise."
        ),
    ):
        command = option(command)
    return command


def eviction_of(method: Setting | None, budget: int, question: Any) -> Any:
    """What ``vqx.host`` attaches to the models that it loads."""
    from vqx.host.mains import Eviction

    options = {} if method is None else dict(method.options)
    return Eviction(None if method is None else method.method, question, {"budget": budget, **options})
