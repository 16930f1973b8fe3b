"""``vqx generate``: mlx-lm's own command with every cache evicting."""

import json
from typing import Any

import click

from vqx.cli.asking import json_flag
from vqx.cli.passing import Passing, evicting, eviction_of
from vqx.spec import Setting

EPILOG = """\b
Examples:
  vqx generate --method h2o --budget 512 --model embedded --prompt "Tell me of the sea."
  vqx generate --question end --budget 1024 --model embedded --prompt - < question.txt
  vqx generate --model mlx-community/Llama-3.2-3B-Instruct-4bit --prompt "Hello" --json
"""


@click.command(cls=Passing, epilog=EPILOG)
@evicting
@json_flag
def command(
    method: Setting | None, budget: int, question: Any, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Answer a prompt, with every cache evicting.

    All options of mlx_lm.generate go with it; --model embedded is SmolLM2-135M out of a wheel.
    """
    eviction = eviction_of(method, budget, question)
    if as_json:
        from vqx.host.generating import run_generate

        click.echo(json.dumps(run_generate(eviction, arguments)))
    else:
        from vqx.host.mains import run

        run("generate", eviction, arguments)
