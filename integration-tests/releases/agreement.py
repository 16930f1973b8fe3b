"""Whether a package's version, changelog and fragments agree, and whether a tag may be set on them.

A package is *released* from the commit whose version is final, whose changelog opens with that version, and
where no fragment waits. Between releases its version is a development one (``0.1.1.dev0``), above the one
that the changelog opens with, and fragments wait in ``changelog.d``.

    python integration-tests/releases/agreement.py [TAG ...]

prints what disagrees (exit 1), or each package with the tag that releases it.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## (.+?) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)


class Package(NamedTuple):
    name: str
    version: Version
    sections: list[Version]  # of its changelog, the newest first
    fragments: list[str]

    @property
    def tag(self) -> str:
        return f"{self.name}-v{self.version}"


def read(folder: Path) -> Package:
    """The package of a folder, as its files say."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    sections = [Version(found[1]) for found in SECTION.finditer((folder / "CHANGELOG.md").read_text())]
    fragments = sorted(file.name for file in folder.glob("changelog.d/*.md"))
    return Package(project["name"], Version(project["version"]), sections, fragments)


def disagreements(package: Package) -> list[str]:
    """What the files of a package contradict each other in, each as a sentence."""
    name, version, sections, _ = package
    found = []
    if sections != sorted(set(sections), reverse=True):
        found.append(f"{name}: its changelog's versions do not fall, one section each")
    latest = max(sections, default=None)
    if version.is_devrelease and latest is not None and not latest < version:
        found.append(f"{name} is at {version}, and its changelog already at {latest}: raise the version")
    if not version.is_devrelease and latest != version:
        found.append(f"{name} is at {version}, and its changelog opens with {latest}: run nox -s changelog")
    return found


def refusals(tag: str, packages: Mapping[str, Package], tagged: Mapping[str, str], commit: str) -> list[str]:
    """Why this commit may not be released under a tag.

    Args:
        tag: ``<package>-v<version>``.
        packages: every package here, by name.
        tagged: the repository's tags with their commits.
        commit: the one to release.
    """
    name, version = _parted(tag)
    if version is None:
        return [f"{tag} is no tag of a release: write <package>-v<version>, as {next(iter(packages))}-v0.1.0"]
    if name not in packages:
        return [f"{tag}: there is no package {name!r}; there are {', '.join(packages)}"]
    package = packages[name]
    found = disagreements(package)
    if package.fragments:
        found.append(f"{tag}: {', '.join(package.fragments)} wait beside its changelog: run nox -s changelog")
    if version.is_devrelease or package.version.is_devrelease:
        found.append(
            f"{tag}: {package.version} is a development version: make it final, run nox -s changelog"
        )
    if tag != package.tag:
        found.append(f"{tag}: {name} is at {package.version}, so its tag is {package.tag}")
    if tagged.get(tag, commit) != commit:
        found.append(
            f"{tag} stands on {tagged[tag][:9]} already, and this is {commit[:9]}: raise the version"
        )
    released = [one for other, one in map(_parted, tagged) if other == name and one is not None]
    if max(released, default=version) > version:
        found.append(f"{tag}: {max(released)} is released already, and versions only rise")
    return found


def _parted(tag: str) -> tuple[str, Version | None]:
    """A tag's package and version; None where it names none."""
    name, _, number = tag.rpartition("-v")
    try:
        return name, Version(number)
    except InvalidVersion:
        return name, None


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def main(tags: Sequence[str]) -> int:
    files = sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("packages/*/pyproject.toml")])
    packages = {one.name: one for one in (read(file.parent) for file in files)}
    found = [said for one in packages.values() for said in disagreements(one)]
    if tags:
        lines = _git("for-each-ref", "--format=%(refname:strip=2) %(*objectname) %(objectname)", "refs/tags")
        tagged = {line.split()[0]: line.split()[1] for line in lines.splitlines()}
        commit = _git("rev-parse", "HEAD")
        found += [said for tag in tags for said in refusals(tag, packages, tagged, commit)]
        if _git("status", "--porcelain"):
            found.append("the checkout has changes that are not committed: a tag would not hold them")
    state = {True: "in development", False: "may be set"}
    agreed = [f"{one.tag:32}{state[one.version.is_devrelease]}" for one in packages.values()]
    print("\n".join(dict.fromkeys(found) or agreed))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
