"""The site: ``uv run nox -s docs``. Pages are those of the repository, so a link that works there works here.

The source folder is the repository itself; only tables of contents and the reference are made here.
"""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(file.parent.relative_to(ROOT).as_posix() for file in ROOT.glob("packages/*/pyproject.toml"))

MODULES = ["vqx_kernels", *(one.partition("/")[2].replace("-", "_") for one in PACKAGES)]

project = "vqx"
author = copyright = "The vqx authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**.md",
    *(
        f"{folder}/{page}.md"
        for folder in ("core", "kernels-shared", "packages/*")
        for page in ("README", "CHANGELOG")
    ),
]
exclude_patterns = [".*", "build", "dist"]
html_theme = "furo"
html_title = "vqx"
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
myst_heading_anchors = 4
nitpicky = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "mixed"
linkcheck_timeout = 20

CONTENTS = {
    "First": ["start", "choose", "command-line"],
    "Methods": ["comparison", "methods", "evidence", "peers"],
    "How it works": ["how-it-works", "garbled-prompts", "field-cases", "kernels", "speed"],
    "The host": ["host", "coverage"],
    "Write a method": ["write-a-method", "testing"],
    "More": ["migration", "reference", "changelogs"],
}
"""The root's parts with their pages; one that is not there is left out, one that is not named comes last."""


def contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append what the menu shows, which a reader of the repository has no use for."""
    here = {file.stem for file in (ROOT / "docs").glob("*.md")} - {"README"}
    if page == root_doc:
        named = {one for pages in CONTENTS.values() for one in pages}
        parts = {**CONTENTS, "Other": sorted(here - named)}
        for caption, pages in parts.items():
            source[0] += _toctree([one for one in pages if one in here], caption)
        source[0] += _toctree(["../README", "../CONTRIBUTING", "../SECURITY"], "The repository")
    elif page == "docs/methods":
        source[0] += _toctree(
            [f"methods/{file.stem}" for file in sorted((ROOT / "docs/methods").glob("*.md"))]
        )
    elif page == "docs/reference":
        source[0] += "".join(_public(module) for module in ["vqx", *MODULES])
    elif page == "docs/changelogs":
        folders = ["core", "kernels-shared", *PACKAGES]
        source[0] += _toctree([f"../{one}/CHANGELOG" for one in folders], hidden=False)
        source[0] += _toctree([f"../{one}/README" for one in folders])


def _toctree(pages: list[str], caption: str = "", *, hidden: bool = True) -> str:
    if not pages:
        return ""
    options = [":hidden:"] * hidden + [":maxdepth: 1"] + [f":caption: {caption}"] * bool(caption)
    return "\n\n```{toctree}\n" + "\n".join([*options, "", *pages]) + "\n```\n"


def _public(module: str) -> str:
    """What a package names, as Sphinx's directives."""
    brought = import_module(module)
    said = f"\n\n## {module}\n\n{(brought.__doc__ or '').strip().partition(chr(10))[0]}\n"
    for name in getattr(brought, "__all__", []):
        thing = getattr(brought, name)
        if not getattr(thing, "__module__", "vqx").partition(".")[0].startswith("vqx"):
            continue
        kind = (
            "exception"
            if isinstance(thing, type) and issubclass(thing, Exception)
            else ("class" if isinstance(thing, type) else "function" if callable(thing) else "data")
        )
        members = "\n   :members:" * (kind == "class")
        said += f"\n```{{eval-rst}}\n.. auto{kind}:: {module}.{name}{members}\n```\n"
    return said


def sections(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Read ``Args:`` and its like; in the words below a field, a colon is a colon."""
    if what == "data" and type(thing).__module__ == "builtins":
        lines.clear()  # those of int are no words about a number
    if lines and lines[0].startswith("Alias for field number"):
        lines[0] = _comment(*name.rsplit(".", 2))
    if what not in ("attribute", "property", "data"):
        lines[:] = GoogleDocstring(lines, Config(napoleon_use_rtype=False), app, what, name, thing).lines()


def _comment(module: str, owner: str, field: str) -> str:
    """What stands behind a field in the source of its NamedTuple."""
    source = inspect.getsource(getattr(import_module(module), owner))
    found = re.search(rf"^    {field}: [^#\n]*#\s*(.*)$", source, re.MULTILINE)
    return found[1] if found else ""


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    sys.path.insert(0, str(ROOT))
    app.connect("source-read", contents)
    app.connect("autodoc-process-docstring", sections)
