"""``vqx qfilters``: read a text with a model, and save one direction for each of its heads."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import mlx.nn as nn
from vqx.cli.asking import json_flag
from vqx.cli.group import in_words
from vqx.cli.showing import loading, progress
from vqx.fingerprint import fingerprint
from vqx.host.layers import attention_of
from vqx.host.models import EMBEDDED, load_model
from vqx.host.queries import queries_of

from vqx_qfilters.filters import Filters, directions, save

PIECE = 2048
"""Tokens that are read at once: the paper's length of a calibration sequence."""

EPILOG = """\b
Examples:
  vqx qfilters --out filters.safetensors
  vqx qfilters mlx-community/Llama-3.2-1B-Instruct-4bit --text notes.txt --out filters.safetensors --json
"""


@click.command("qfilters", epilog=EPILOG)
@click.argument("model", default=EMBEDDED)
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file to write."
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="UTF-8 text to read (may be given again). Default: the package's own.",
)
@json_flag
def command(model: str, out: Path, texts: tuple[Path, ...], as_json: bool) -> None:
    """Make the Q-Filters of MODEL, a folder or repository that mlx_lm.load takes.

    Takes seconds: the text, about a thousand tokens, is read once. Then give filters=FILE to the method.
    """
    with in_words():
        with loading(model):
            loaded, tokenizer = load_model(model)
        own = [path.read_text(encoding="utf-8") for path in texts] or [default_text()]
        with progress("reading"):
            found = calibrate(loaded, [tokenizer.encode(text) for text in own])
        save(found, out)
    layers, heads, width = found.directions.shape
    if as_json:
        click.echo(json.dumps({"file": str(out), "layers": layers, "heads": heads, "width": width}))
    else:
        click.echo(f"{out}: {layers} layers of {heads} heads, directions of {width} numbers")


def calibrate(model: nn.Module, texts: Sequence[Sequence[int]]) -> Filters:
    """The filters of a model by the queries of some texts, each a list of tokens.

    Raises:
        ValueError: no text, or a model whose queries cannot be seen.
    """
    pieces = [text[first : first + PIECE] for text in texts for first in range(0, len(text), PIECE)]
    if not pieces:
        raise ValueError("no tokens to read: give a text")
    seen = [queries_of(model, piece) for piece in pieces]
    attentions: list[Any] = [attention_of(model, number) for number in seen[0]]
    return Filters(directions([list(queries.values()) for queries in seen]), fingerprint(attentions))


def default_text() -> str:
    """A text of prose, lists, dialogue, numbers and code, about a thousand tokens."""
    return (files("vqx_qfilters") / "calibration.txt").read_text(encoding="utf-8")
