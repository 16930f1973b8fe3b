"""Packages of this repository that may be installed: names and summaries alone, for messages.

``known.json`` is written from the packages' own files by ``integration-tests/write_known.py``; a package that
it does not name works all the same.
"""

import difflib
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Known(NamedTuple):
    """One package and what it brings."""

    package: str
    summary: str
    methods: list[str]
    commands: list[str]


@cache
def known() -> tuple[Known, ...]:
    """Every package, by name."""
    text = files("vqx").joinpath("known.json").read_text(encoding="utf-8")
    return tuple(Known(**one) for one in json.loads(text))


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the nearest one, if any is near."""
    near = difflib.get_close_matches(name, [*known], 1)
    return f". Did you mean {near[0]!r}?" if near else ""


def hint(name: str, here: list[str], kind: str) -> str:
    """What to do about a name that is not ``here``: the nearest one, or the package that brings it.

    Args:
        kind: ``methods`` or ``commands``.
    """
    brings = {one: each.package for each in known() for one in getattr(each, kind)}
    near = difflib.get_close_matches(name, [*here, *brings], 1)
    if not near:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        return f"See vqx methods --available, or try: pip install vqx-{slug}"
    if near[0] in here:
        return f"Did you mean {near[0]!r}?"
    meant = "" if near[0] == name else f"Did you mean {near[0]!r}? "
    return f"{meant}Try: pip install {brings[near[0]]}"
