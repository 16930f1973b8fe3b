"""``vqx serve``: mlx-lm's server with every cache evicting."""

from typing import Any

import click

from vqx.cli.asking import json_flag
from vqx.cli.passing import Passing, evicting, eviction_of
from vqx.spec import Setting

EPILOG = """\b
Examples:
  vqx serve --method tova --budget 2048 --model embedded --port 8080
  vqx serve --question later --model mlx-community/Llama-3.2-3B-Instruct-4bit
  vqx serve --model embedded --port 0 --json
"""


@click.command(cls=Passing, epilog=EPILOG)
@evicting
@json_flag
def command(
    method: Setting | None, budget: int, question: Any, arguments: tuple[str, ...], as_json: bool
) -> None:
    """Serve a model over HTTP, with every cache evicting.

    All options of mlx_lm.server go with it; --model embedded is SmolLM2-135M out of a wheel. GET /v1/vqx
    tells the method, what each sequence under way keeps, and the memory used. With --json a line says where
    the server listens (--port 0: any free port) and what evicts, and the log is a line of JSON an event.
    """
    from vqx.host.serving import run_serve

    run_serve(eviction_of(method, budget, question), arguments, as_json=as_json)
