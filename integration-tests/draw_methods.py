"""Draw what each method keeps of one text, for its page in docs/methods: docs/results/kept/NAME.png.

    python integration-tests/draw_methods.py [NAME ...]

As ``vqx inspect --method NAME:prompt=whole --budget 64 --tokens 12 --png FILE``: the prompt is cut once, when
all of it was read. Three settings need more than a command line: spans for protect, a second pass for kvzip,
and another method inside for those that go around one.
"""

import io
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import vqx
from PIL import Image
from vqx.host.embedded import load_embedded
from vqx_inspect import pieces, record
from vqx_inspect.picture import picture
from vqx_kvzip import compress
from vqx_protect import spans_of_text

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "kept"
PAGES = Path(__file__).parents[1] / "docs" / "methods"
BUDGET, TOKENS = 64, 12
SETTINGS = {
    "ada": "ada(snapkv)",
    "cam": "cam(tova)",
    "layerwise": "layerwise(fusion)",
    "protect": "protect(h2o)",
    "squeezeattention": "squeezeattention(h2o)",
}
"""What is drawn for a method that goes around another."""


def drawn(name: str, model: Any, tokenizer: Any) -> Any:
    """The figure for one method."""
    text = files("vqx_inspect").joinpath("text.txt").read_text(encoding="utf-8").strip()
    tokens = tokenizer.encode(text)
    options: dict[str, Any] = {"budget": BUDGET, "prompt": "whole"}
    if name == "protect":
        options["spans"] = spans_of_text(tokenizer, tokens, "The code of the harbour office is 47392.")
    setting = SETTINGS.get(name, name)
    caches = vqx.make_cache(model, setting, **options)
    read: list[int] = []
    if name == "kvzip":
        read = tokens[: len(tokenizer.encode(text.partition("Question")[0]))]
        compress(model, tokenizer, caches, read)
    ends = tokenizer.eos_token_ids
    found = record(model, caches, tokens[len(read) :], before=read, write=TOKENS, ends=ends)
    cut = "the context repeated once" if name == "kvzip" else "the prompt cut once at its end"
    title = f"{setting}, {BUDGET} rows per layer, {cut}"
    return picture(found, pieces(tokenizer.decode, found.tokens), title)


def main(names: list[str]) -> None:
    model, tokenizer = load_embedded()
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        sheet = io.BytesIO()
        drawn(name, model, tokenizer).savefig(sheet, dpi=100)
        few = Image.open(sheet).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        few.save(FOLDER / f"{name}.png", optimize=True)
        print(name, (FOLDER / f"{name}.png").stat().st_size, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(page.stem for page in PAGES.glob("*.md")))
