"""``vqx chat``: mlx-lm's own command with every cache evicting."""

from typing import Any

import click

from vqx.cli.passing import Passing, evicting, eviction_of
from vqx.spec import Setting

EPILOG = """\b
Examples:
  vqx chat --method h2o:recent=64 --budget 1024 --model embedded
  vqx chat --model mlx-community/Llama-3.2-3B-Instruct-4bit --temp 0.7
"""


@click.command(cls=Passing, epilog=EPILOG)
@evicting
def command(method: Setting | None, budget: int, question: Any, arguments: tuple[str, ...]) -> None:
    """Chat in the terminal, with every cache evicting.

    All options of mlx_lm.chat go with it; --model embedded is SmolLM2-135M out of a wheel.
    """
    from vqx.host.mains import run

    run("chat", eviction_of(method, budget, question), arguments)
