"""A recording in the terminal: words shaded by how many heads hold them, or dots where colour is not."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from vqx_inspect.recording import Floats

SHADES = ("default", "white on #56697a", "white on #3f7aa3", "bold white on #1f86c9", "bold white on #0072e6")
"""Few heads to all of them: ever more vivid, on a dark terminal as on a light one."""


def shaded(console: Console, texts: Sequence[str], share: Floats, prompt: int) -> Text:
    """The text; written tokens are underlined.

    Args:
        share: for each token read, the part of the heads that hold it.
        prompt: how many tokens were given.
    """
    coloured = console.color_system is not None and not console.no_color
    found = Text()
    for number, (text, part) in enumerate(zip(texts, share, strict=False)):
        mark = "underline" if number >= prompt else ""
        if not coloured:
            found.append(text if part >= 0.5 else _dots(text), mark)
        elif part == 0:
            found.append(text, f"{mark} dim strike")
        else:
            shade = min(int(part * len(SHADES)), len(SHADES) - 1)
            found.append(text, f"{mark} {SHADES[shade]}")
    return found


def legend(console: Console) -> Text:
    """How to read it."""
    if console.color_system is None or console.no_color:
        return Text("dots: fewer than half of the heads hold the token; underlined: written")
    found = Text("held by ")
    for number, shade in enumerate(SHADES):
        words = "few" if number == 0 else "all" if number == len(SHADES) - 1 else "  "
        found.append(f" {words} ", shade)
    return found.append(" heads, ").append("none", "dim strike").append("; ").append("written", "underline")


def _dots(text: str) -> str:
    return "".join(letter if letter.isspace() else "·" for letter in text)
