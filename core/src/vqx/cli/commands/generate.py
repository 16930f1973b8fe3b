"""``vqx generate``: mlx-lm's own command with every cache evicting."""

from typing import Any

import click

from vqx.cli.passing import Passing, evicting, eviction_of
from vqx.spec import Setting


@click.command(cls=Passing)
@evicting
def command(method: Setting | None, budget: int, question: Any, arguments: tuple[str, ...]) -> None:
    """Answer a prompt, with every cache evicting.

    All options of mlx_lm.generate go with it; --model embedded is SmolLM2-135M out of a wheel.
    """
    from vqx.host.mains import run

    run("generate", eviction_of(method, budget, question), arguments)
