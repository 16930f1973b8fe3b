"""``vqx compare``: one prompt, several methods, their texts side by side."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vqx.cli.asking import METHOD, json_flag, model_option, read_prompt
from vqx.cli.showing import loading, progress, table
from vqx.spec import Setting

if TYPE_CHECKING:
    from vqx.host.comparing import Answer

NARROW = 26
"""Columns below which texts stand one below the other."""
EPILOG = """\b
Examples:
  vqx compare "Why is the sky blue?" --method h2o --method tova --budget 64
  vqx compare - --method h2o:decay=0.98 --method streaming-llm < letter.txt
  vqx compare "Tell me a story." --method h2o --tokens 200 --json
"""


@click.command(epilog=EPILOG)
@click.argument("prompt")
@model_option
@click.option("--method", "methods", type=METHOD, multiple=True, required=True, help="May be given again.")
@click.option("--budget", type=click.IntRange(1), default=256, show_default=True, help="Rows per layer.")
@click.option("--tokens", type=click.IntRange(1), default=64, show_default=True, help="The most to write.")
@click.option("--chunk", type=click.IntRange(1), default=512, show_default=True, help="Tokens read at once.")
@click.option("--raw", is_flag=True, help="Read the prompt as it is, without the model's chat template.")
@json_flag
def command(
    prompt: str,
    model: str,
    methods: tuple[Setting, ...],
    budget: int,
    tokens: int,
    chunk: int,
    raw: bool,
    as_json: bool,
) -> None:
    """Answer PROMPT with the full cache and with each method, side by side.

    PROMPT may be -, standard input. Everybody writes greedily, so that texts differ by what was evicted
    alone. From the first token on that is not the full cache's, text stands in another colour.
    """
    from vqx.host.comparing import compared, tokens_of
    from vqx.host.models import load_model

    with loading(model):
        loaded, tokenizer = load_model(model)
    read = tokens_of(tokenizer, read_prompt(prompt), raw=raw)
    with progress("full cache", (len(read) + tokens) * (1 + len(methods))) as advance:
        given: dict[str, Any] = {"budget": budget, "tokens": tokens, "chunk": chunk}
        found = [*compared(loaded, tokenizer, read, methods, advance=advance, **given)]
    if as_json:
        click.echo(json.dumps([asdict(answer) for answer in found], indent=1))
        return
    console = Console()
    _print_texts(console, found)
    click.echo()
    table([_figures(answer) for answer in found])
    click.echo(
        f"\n{len(read)} tokens read; alike: tokens written before the first that is not the full cache's."
    )


def _print_texts(console: Console, found: Sequence["Answer"]) -> None:
    """Beside each other where there is room, else below each other."""
    texts = [_marked(answer.text, found[0].text) for answer in found]
    if console.width // len(found) < NARROW:
        for answer, text in zip(found, texts, strict=True):
            console.print(Text(answer.name, "bold"), text, "", sep="\n")
        return
    drawn = Table(expand=True, show_lines=False)
    for answer in found:
        drawn.add_column(answer.name, ratio=1, overflow="fold")
    drawn.add_row(*texts)
    console.print(drawn)


def _marked(text: str, reference: str) -> Text:
    """In colour from where it departs from the reference."""
    pairs = zip(text, reference, strict=False)
    alike = next((place for place, (one, other) in enumerate(pairs) if one != other), len(reference))
    return Text(text[:alike]).append(text[alike:], "dark_orange3")


def _figures(answer: "Answer") -> dict[str, str]:
    return {
        "cache": answer.name,
        "rows": f"{answer.rows}",
        "MB": f"{answer.megabytes:.1f}",
        "prompt tok/s": f"{answer.prompt_tokens_per_second:.0f}",
        "answer tok/s": f"{answer.answer_tokens_per_second:.1f}",
        "alike": f"{answer.alike} of {answer.tokens}",
    }
