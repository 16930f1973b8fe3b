"""A method with its options as it is written on a command line: ``h2o:decay=0.98,recent=32``."""

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from vqx.build import chain_of, split_options
from vqx.spec import Setting


def settings(texts: Sequence[str]) -> list[Setting]:
    """Settings as they are written: ``h2o``, ``h2o:decay=0.98,recent=32``, ``h2o,tova``, and values in
    brackets, ``protect(h2o):spans=((0, 64),)``.

    Raises:
        ValueError: an option without a value or a name.
    """
    found: list[Setting] = []
    for piece in _pieces(" ".join(texts)):
        name, colon, option = piece.partition(":") if ":" in piece.split("=")[0] else ("", "", piece)
        if not colon and "=" not in piece:
            found.append(Setting(piece, {}))
            continue
        if colon:
            found.append(Setting(name, {}))
        key, equals, value = option.partition("=")
        if not (found and key and equals):
            raise ValueError(f"{piece!r}: write a method with its options as h2o:decay=0.98,recent=32")
        found[-1] = found[-1]._replace(options={**found[-1].options, key: _value(value)})
    return [setting for number, setting in enumerate(found) if setting not in found[:number]]


def label(setting: Setting) -> str:
    """As it would be written on a command line."""
    given = ",".join(f"{name}={value}" for name, value in setting.options.items())
    return f"{setting.method}:{given}" if given else setting.method


def check(setting: Setting) -> None:
    """Refuse a method that is not installed, and an option that it does not have.

    Raises:
        ValueError, PluginError: as :func:`vqx.build.chain_of` and :func:`vqx.build.split_options`.
    """
    split_options(chain_of(setting.method), setting.options)


def _pieces(text: str) -> Iterator[str]:
    """What stands between spaces and commas; in brackets they part nothing."""
    piece, depth = "", 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if depth or not (letter.isspace() or letter == ","):
            piece += letter
        elif piece:
            yield piece
            piece = ""
    if piece:
        yield piece


def _value(text: str) -> Any:
    if text in ("none", "true", "false"):
        text = text.capitalize()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
