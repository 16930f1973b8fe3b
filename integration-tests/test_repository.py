"""What every package of this repository has in common, so that siblings look alike line for line."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
KEYS = {
    "": ["project", "build-system"],
    "project": [
        "name",
        "version",
        "description",
        "readme",
        "requires-python",
        "license",
        "license-files",
        "authors",
        "classifiers",
        "urls",
        "dependencies",
        "optional-dependencies",
        "scripts",
        "entry-points",
    ],
    "build-system": ["requires", "build-backend"],
}
"""The tables and keys of a package's pyproject.toml, in their order."""
OPTIONAL = {"urls", "optional-dependencies", "scripts", "entry-points"}


class Package(NamedTuple):
    folder: Path
    toml: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.toml["project"]["name"])

    @property
    def version(self) -> Version:
        return Version(self.toml["project"]["version"])

    @property
    def module(self) -> Path:
        return self.folder / "src" / self.name.replace("-", "_")

    @property
    def requirements(self) -> list[Requirement]:
        extras = self.toml["project"].get("optional-dependencies", {}).values()
        return [Requirement(one) for many in (self.toml["project"]["dependencies"], *extras) for one in many]


PACKAGES = [
    Package(file.parent, tomllib.loads(file.read_text()))
    for file in sorted(ROOT.glob("*/pyproject.toml")) + sorted(ROOT.glob("packages/*/pyproject.toml"))
]
PLUGINS = [package for package in PACKAGES if package.folder.parent.name == "packages"]
OURS = {package.name: package.version for package in PACKAGES}

each = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
each_plugin = pytest.mark.parametrize("package", PLUGINS, ids=lambda package: package.name)


def test_packages_are_found() -> None:
    assert {"vqx", "vqx-kernels"} < set(OURS)
    assert len(PLUGINS) > 1


@each
def test_a_package_has_a_readme_tests_and_types(package: Package) -> None:
    assert (package.folder / "README.md").read_text().strip()
    assert list(package.folder.glob("tests/test_*.py"))
    assert (package.module / "py.typed").is_file()


@each
def test_a_package_carries_the_licence_of_the_repository(package: Package) -> None:
    assert (package.folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert package.toml["project"]["license-files"] == ["LICENSE"]


@each
def test_a_pyproject_file_has_its_siblings_keys_in_their_order(package: Package) -> None:
    for table, keys in KEYS.items():
        found = list(package.toml[table] if table else package.toml)
        if not table:
            found = [key for key in found if key != "tool"]
        assert found == [key for key in keys if key in found]
        assert set(keys) - set(found) <= OPTIONAL


@each
def test_a_pyproject_file_agrees_with_its_siblings(package: Package) -> None:
    core = next(one for one in PACKAGES if one.name == "vqx").toml
    assert package.toml["build-system"] == core["build-system"]
    for key in ("readme", "requires-python", "license", "authors", "classifiers"):
        assert package.toml["project"][key] == core["project"][key]


@each
def test_siblings_are_asked_for_by_the_range_of_their_minor_version(package: Package) -> None:
    for asked in package.requirements:
        if asked.name in OURS and asked.name != package.name:
            bounds = sorted(str(asked.specifier).split(","))
            low = re.fullmatch(r">=(\d+)\.(\d+)(\.\d+)?", bounds[-1])
            assert low is not None, f"{asked}: write >=x.y,<x.(y+1)"
            assert bounds[:-1] == [f"<{low[1]}.{int(low[2]) + 1}"]
            assert OURS[asked.name] in asked.specifier


@each
def test_everything_asked_for_has_a_lower_bound(package: Package) -> None:
    for asked in package.requirements:
        assert {bound.operator for bound in asked.specifier} & {">=", "=="}, f"{asked} has no lower bound"


def test_a_library_is_asked_for_with_one_bound_by_all() -> None:
    """So that one environment holds the lowest version that anyone asks for (the session ``lowest``)."""
    bounds: dict[str, set[str]] = {}
    for package in PACKAGES:
        for asked in package.requirements:
            bounds.setdefault(asked.name, set()).add(str(asked.specifier))
    assert len(bounds["mlx"]) == 1
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


@each
def test_the_workspace_pins_lie_within_a_packages_ranges(package: Package) -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = {Requirement(pin).name: Requirement(pin) for pin in root["tool"]["uv"]["constraint-dependencies"]}
    for asked in package.requirements:
        if asked.name in pins:
            assert str(pins[asked.name].specifier).removeprefix("==") in asked.specifier


@each_plugin
def test_a_plugin_declares_entry_points_whose_modules_exist(package: Package) -> None:
    groups = package.toml["project"]["entry-points"]
    assert groups
    for group, entries in groups.items():
        assert group.startswith("vqx.")
        for target in entries.values():
            path = package.folder / "src" / target.partition(":")[0].replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@each_plugin
def test_the_paper_of_a_method_is_linked(package: Package) -> None:
    plugin = package.module / "plugin.py"
    papers = set(re.findall(r'"arXiv (\d{4}\.\d{5})"', plugin.read_text()))
    links = package.toml["project"].get("urls", {})
    assert len(papers) <= 1
    for paper in papers:
        assert links["Paper"] == f"https://arxiv.org/abs/{paper}"


@each_plugin
def test_a_method_is_installed_by_the_name_that_an_unknown_one_is_answered_with(package: Package) -> None:
    methods = package.toml["project"]["entry-points"].get("vqx.methods", {})
    assert not methods or package.name in {f"vqx-{method}" for method in methods}


@pytest.mark.parametrize("file", ["pyproject.toml", "noxfile.py", ".importlinter", ".ci/run"])
def test_no_list_of_plugins_is_written_down(file: str) -> None:
    text = (ROOT / file).read_text()
    for package in PLUGINS:
        assert package.name not in text
        assert package.module.name not in text


def committed(*options: str) -> list[str]:
    """Files of the repository, or a skip where there is none."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *options]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name]


def test_no_lock_file_is_committed() -> None:
    assert "uv.lock" not in committed()


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    secret = re.compile(
        r"pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|(?:deb|ftp)[.]debian[.]org|/(?:work|farm)/[a-z.]"
    )
    found = []
    for name in committed("-co", "--exclude-standard"):
        path = ROOT / name
        text = path.read_text(errors="replace") if path.is_file() else ""
        found += [f"{name}: {match[0]}" for match in secret.finditer(text)]
    assert found == []
