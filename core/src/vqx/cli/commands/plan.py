"""``vqx plan``: what fits into a memory."""

import json
import re
from typing import Any

import click
from rich.console import Console

from vqx.cli.asking import METHOD, json_flag
from vqx.cli.showing import progress
from vqx.spec import Setting

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


class Bytes(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, and 8.1 will do
    """An amount of memory: ``8GB``, ``7.5GiB``, ``800MB``."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", str(value).strip().upper())
        if found is None or found[2] not in UNITS:
            self.fail(f"{value!r}: write it as 8GB, 7.5GiB or 800MB", param, ctx)
        return int(float(found[1]) * UNITS[found[2]])


EPILOG = """\b
Examples:
  vqx plan Llama-3.2-3B --budget 2048 --prompt 8192
  vqx plan Llama-3.1-8B --memory 12GB --prompt 8192 --weight-bits 4
  vqx plan embedded --method tova --budget 512 --json
"""


@click.command(epilog=EPILOG)
@click.argument("model", default="embedded")
@click.option("--method", type=METHOD, help="A method, with options as h2o:decay=0.98. [default: the best]")
@click.option("--budget", type=int, help="Rows that each layer keeps.")
@click.option("--memory", type=Bytes(), help="Seek the greatest budget whose peak fits into it: 8GB.")
@click.option("--prompt", default=4096, show_default=True, help="Tokens of the prompt.")
@click.option("--tokens", default=256, show_default=True, help="Tokens generated.")
@click.option("--sequences", default=1, show_default=True, help="Prompts read together.")
@click.option("--chunk", default=2048, show_default=True, help="Tokens of a prompt read at once.")
@click.option("--dtype", help="Of the weights, where it is not the model's own.")
@click.option("--weight-bits", type=int, help="Of quantised weights, where they are not the model's own.")
@json_flag
def command(
    model: str,
    method: Setting | None,
    budget: int | None,
    memory: int | None,
    as_json: bool,
    **shape: Any,
) -> None:
    """Foretell the peak of memory, or the budget that fits; nothing is run.

    MODEL is 'embedded', a folder with a config.json, such a file, or the name of a shape: Llama-3.2-1B,
    Llama-3.2-3B, Llama-3.1-8B. Bytes are those of the device used here.
    """
    import vqx

    if memory is None and budget is None:
        budget = 1024
    with progress("walking the graph"):
        told = vqx.plan(model, method, budget=budget, memory=memory, **shape)
        full = vqx.plan(model, "full", **shape)
    if as_json:
        found = {**told._asdict(), "peak": told.peak, "full": {**full._asdict(), "peak": full.peak}}
        click.echo(json.dumps(found, indent=2))
        return
    console = Console()
    console.print(
        f"{model}, {shape['sequences']} x {shape['prompt']} tokens read and {shape['tokens']} generated\n"
        f"{'':>14} {told.budget:>8} rows {'all rows':>12}",
        highlight=False,
    )
    for what, ours, theirs in (
        ("weights", told.weights, full.weights),
        ("caches", told.cache, full.cache),
        ("peak, prompt", told.prompt, full.prompt),
        ("peak, decode", told.decode, full.decode),
    ):
        console.print(f"{what:>14} {ours / 1e9:>10.2f} GB {theirs / 1e9:>9.2f} GB", highlight=False)
    if memory is not None and full.peak <= memory:
        console.print("all rows fit: nothing has to be evicted", highlight=False)
