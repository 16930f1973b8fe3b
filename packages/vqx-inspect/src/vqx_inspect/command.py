"""``vqx inspect``: read a text, write on, and show which tokens were kept."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import numpy as np
import vqx
from rich.console import Console
from vqx.cli.asking import METHOD, drawing, json_flag, model_option
from vqx.cli.showing import loading, progress
from vqx.settings import label

from vqx_inspect.page import page
from vqx_inspect.recording import Recording, pieces, record
from vqx_inspect.terminal import legend, shaded

OUT = click.Path(dir_okay=False, path_type=Path)
EPILOG = """\b
Examples:
  vqx inspect --method tova --budget 64
  vqx inspect --method h2o:decay=0.98 --layer 3 --head 1
  vqx inspect --text notes.txt --budget 256 --html kept.html --png kept.png
"""


@click.command("inspect", epilog=EPILOG)
@model_option
@click.option(
    "--method", type=METHOD, default="h2o", show_default=True, help="h2o, or h2o:decay=0.98,recent=32."
)
@click.option("--budget", type=click.IntRange(1), default=64, show_default=True, help="Rows kept per layer.")
@click.option(
    "--text", type=click.File(encoding="utf-8"), help="File to read, - for stdin. Default: our own."
)
@click.option("--tokens", type=click.IntRange(0), default=32, show_default=True, help="Tokens to write.")
@click.option("--chunk", type=click.IntRange(1), default=64, show_default=True, help="Tokens read at once.")
@click.option("--layer", type=int, help="Only this layer (terminal). Default: all.")
@click.option("--head", type=int, help="Only this head of keys and values (terminal). Default: all.")
@click.option("--html", "html_file", type=OUT, help="Write a page with sliders for time, layer and head.")
@click.option("--png", type=OUT, help="Write a picture (needs vqx-inspect[plots]).")
@json_flag
def command(
    model: str,
    method: vqx.Setting,
    budget: int,
    text: Any,
    tokens: int,
    chunk: int,
    layer: int | None,
    head: int | None,
    html_file: Path | None,
    png: Path | None,
    as_json: bool,
) -> None:
    """Show which tokens of a text each layer and head kept, on the text itself.

    The text is read as it is, without a chat template, and the model goes on for some tokens.
    """
    draw = drawing("vqx_inspect.picture", "picture", "--png") if png is not None else None
    from vqx.host.models import load_model

    read = text.read() if text else files("vqx_inspect").joinpath("text.txt").read_text(encoding="utf-8")
    with loading(model):
        loaded, tokenizer = load_model(model)
    options: dict[str, Any] = {"budget": budget, **method.options}
    caches = vqx.make_cache(loaded, method.method, **options)
    given = tokenizer.encode(read.strip())
    with progress("reading", len(given) + tokens) as advance:
        found = record(
            loaded, caches, given, write=tokens, chunk=chunk, ends=tokenizer.eos_token_ids, advance=advance
        )
    texts = pieces(tokenizer.decode, found.tokens)
    place = _place(found, layer, head)
    title = f"{label(method)}, {budget} rows per layer, {Path(model).name}"
    if html_file is not None:
        html_file.write_text(page(found, texts, title), encoding="utf-8")
    if draw is not None:
        draw(found, texts, title).savefig(png, dpi=150)
    if as_json:
        click.echo(json.dumps(_facts(found, texts, title), indent=1))
        return
    console = Console()
    share = found.share(-1, place, head)
    console.print(shaded(console, texts, share, found.prompt))
    heads = "all heads" if head is None else f"head {head}"
    where = f"all {len(found.layers)} layers" if layer is None else f"layer {layer}"
    console.print(f"\n{title}: {where}, {heads}, at the end", highlight=False)
    console.print(legend(console))
    for written in (html_file, png):
        if written is not None:
            console.print(f"wrote {written}", highlight=False)


def _place(found: Recording, layer: int | None, head: int | None) -> int | None:
    """The place of a layer in the recording."""
    if layer is not None and layer not in found.layers:
        raise ValueError(f"--layer {layer}: those that evict are {found.layers[0]} to {found.layers[-1]}")
    place = None if layer is None else found.layers.index(layer)
    heads = min(len(gone) for gone in (found.gone if place is None else [found.gone[place]]))
    if head is not None and not 0 <= head < heads:
        raise ValueError(f"--head {head}: there are heads 0 to {heads - 1}")
    return place


def _facts(found: Recording, texts: list[str], title: str) -> dict[str, Any]:
    """For each layer and head, the step at which each token's row had gone; null where it is still held."""
    last = len(found.steps)
    gone = [[[step if step < last else None for step in head] for head in one.tolist()] for one in found.gone]
    return {
        "title": title,
        "tokens": texts,
        "prompt": found.prompt,
        "steps": found.steps,
        "layers": [{"layer": number, "gone": one} for number, one in zip(found.layers, gone, strict=True)],
        "kept": [round(float(part), 4) for part in np.asarray(found.share(-1))],
    }
