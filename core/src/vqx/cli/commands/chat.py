"""``vqx chat``: mlx-lm's own command with every cache evicting."""

from typing import Any

import click

from vqx.cli.asking import json_flag
from vqx.cli.passing import Passing, evicting, eviction_of
from vqx.spec import Setting

EPILOG = """\b
Examples:
  vqx chat --method h2o:recent=64 --budget 1024 --model embedded
  vqx chat --model mlx-community/Llama-3.2-3B-Instruct-4bit --temp 0.7
  vqx chat --model embedded --budget 256 --json < letter.txt
"""


@click.command(cls=Passing, epilog=EPILOG)
@evicting
@json_flag
def command(
    method: Setting | None, budget: int, question: Any, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Chat in the terminal, with every cache evicting.

    All options of mlx_lm.chat go with it; --model embedded is SmolLM2-135M out of a wheel. With --json each
    line of standard input is a turn, answered by a line: the text, its tokens, and the rows kept.
    """
    eviction = eviction_of(method, budget, question)
    if as_json:
        from vqx.host.chatting import run_chat

        run_chat(eviction, arguments)
    else:
        from vqx.host.mains import run

        run("chat", eviction, arguments)
