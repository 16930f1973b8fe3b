"""Run commands of ``vqx`` that standard input lists as JSON, in one process with one embedded model.

    python integration-tests/run_commands.py [LAYERS] < COMMANDS

With a number of layers only the model's first ones are used. They run as in a terminal, so that what takes
long draws a bar. Said is each command, how long it took, and at the end ``all ran``.
"""

import functools
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import vqx
from click.testing import CliRunner
from vqx.cli import main
from vqx.host import embedded

BARRED = ("bench", "compare", "demo", "eval", "inspect", "layerwise", "plan", "qfilters")
"""Commands that take more than a second; chat, generate and serve write as they go."""


@functools.cache
def shallow(layers: int) -> tuple[Any, Any]:
    """The embedded model's first layers under its own head."""
    whole, tokenizer = load_whole()
    model = type(whole)(replace(whole.args, num_hidden_layers=layers))
    model.model.embed_tokens, model.model.norm = whole.model.embed_tokens, whole.model.norm
    model.model.layers = whole.model.layers[:layers]
    return model, tokenizer


def run(command: str) -> None:
    """Run one; its input is the file that it is given, or what one says to a chat.

    Raises:
        ValueError: it failed, printed nothing, no JSON where that was asked for, or took long without a bar.
    """
    words, _, file = command.partition(" < ")
    split = shlex.split(words)[1:]
    given = Path(file).read_text(encoding="utf-8") if file else "Hello\nq\n"
    result = CliRunner(env={"FORCE_COLOR": "1"}).invoke(main, split, input=given, catch_exceptions=False)
    if result.exit_code or not result.stdout.strip():
        raise ValueError(f"{command}: exit code {result.exit_code}, printed {result.output!r}")
    if split[0] in BARRED and "--list" not in split and "━" not in result.stderr:
        raise ValueError(f"{command}: no progress bar")
    if "--json" in split:
        for line in result.stdout.splitlines() if split[0] == "chat" else [result.stdout]:
            json.loads(line)


if __name__ == "__main__":
    layers = int(sys.argv[1]) if sys.argv[1:] else 30
    load_whole = embedded.load_embedded
    model, tokenizer = shallow(layers)

    def load_shallow() -> tuple[Any, Any]:
        """The same model each time, with nothing attached."""
        vqx.detach(model)
        model.__dict__.pop("make_cache", None)
        return model, tokenizer

    embedded.load_embedded = load_shallow
    for command in json.load(sys.stdin):
        print(command, flush=True)
        begun = perf_counter()
        run(command)
        print(f"    {perf_counter() - begun:.1f} s", flush=True)
    print("all ran")
