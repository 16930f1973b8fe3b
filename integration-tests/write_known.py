"""Write ``core/src/vqx/known.json``, by which messages name packages that are not installed."""

import json
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "core" / "src" / "vqx" / "known.json"


def found() -> list[dict[str, Any]]:
    """What the packages say of themselves."""
    projects = [
        tomllib.loads(file.read_text())["project"] for file in sorted(ROOT.glob("packages/*/pyproject.toml"))
    ]
    return [
        {
            "package": project["name"],
            "summary": project["description"].partition(": ")[2],
            "methods": sorted(project["entry-points"].get("vqx.methods", {})),
            "commands": sorted(project["entry-points"].get("vqx.commands", {})),
        }
        for project in projects
    ]


def written() -> str:
    """The file's text."""
    return json.dumps(found(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
