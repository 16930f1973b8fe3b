"""``vqx layerwise``: measure what each layer of a model loses without its far rows, and save the profile."""

import json
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path

import click
import mlx.core as mx
from vqx.cli.asking import json_flag
from vqx.cli.group import in_words
from vqx.cli.showing import loading, progress
from vqx.fingerprint import fingerprint
from vqx.host.layers import attention_of, plain_layers
from vqx.host.models import EMBEDDED, load_model

from vqx_layerwise.measure import measured, samples
from vqx_layerwise.profile import Profile, save

OUT, TEXT = click.Path(dir_okay=False, path_type=Path), click.Path(exists=True, path_type=Path)

EPILOG = """\b
Examples:
  vqx layerwise --text notes/ --out profile.json
  vqx layerwise mlx-community/Llama-3.2-1B-Instruct-4bit --text notes/ --out profile.json --json
"""


@click.command("layerwise", epilog=EPILOG)
@click.argument("model", default=EMBEDDED)
@click.option("--out", required=True, type=OUT, help="The file to write.")
@click.option("--text", "texts", multiple=True, required=True, type=TEXT, help="UTF-8 files, or folders.")
@click.option("--prompt-tokens", default=1024, show_default=True, help="Length of what is read first.")
@click.option("--after-tokens", default=256, show_default=True, help="Tokens whose loss is measured.")
@click.option("--rows", default=64, show_default=True, help="Rows that the layer under trial keeps.")
@json_flag
def command(
    model: str,
    out: Path,
    texts: tuple[Path, ...],
    prompt_tokens: int,
    after_tokens: int,
    rows: int,
    as_json: bool,
) -> None:
    """Measure the profile of MODEL, a folder or repository that mlx_lm.load takes.

    Each layer in turn sees only its latest rows while the others see all: that takes as many readings of the
    texts as the model has layers. Then give profile=FILE to the method.
    """
    with in_words():
        with loading(model):
            loaded, tokenizer = load_model(model)
        files = [file for path in texts for file in (sorted(path.glob("*.txt")) if path.is_dir() else [path])]
        read = [file.read_text(encoding="utf-8") for file in files]
        given = samples(read, tokenizer, prompt_tokens, after_tokens)
        numbers = plain_layers(loaded)
        found = []
        with progress("layers", len(numbers) + 1) as advance:
            for trial in measured(loaded, given, rows, numbers):
                found.append(trial)
                advance(1)
    (loss, recall), *each = found
    about = {
        "model": model,
        "texts": len(given.text),
        "prompt_tokens": prompt_tokens,
        "after_tokens": after_tokens,
        "rows": rows,
        "full": [round(loss, 5), round(recall, 5)],
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()} {platform.system()}, {mx.default_device()}",
        "versions": {name: version(name) for name in ("mlx", "mlx-lm")},
    }
    mark = fingerprint([attention_of(loaded, number) for number in numbers])
    save(Profile([one - loss for one, _ in each], [one - recall for _, one in each], mark, about), out)
    if as_json:
        click.echo(json.dumps({"file": str(out), "layers": len(each), **about}))
    else:
        click.echo(f"{out}: {len(each)} layers, by {len(given.text)} texts")
