"""Every check of the workspace: ``uv run nox`` runs them all, ``uv run nox -l`` lists them.

Packages are found by globbing, built once, and installed by the path of their wheel: a wheel of the same
version that is found through an index may silently be an older one.
"""

import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple
from zipfile import ZipFile

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"

ROOT = Path(__file__).parent
WHEELS = ROOT / "dist"
SHARED = ("vqx[cpu,testing]", "vqx-kernels")


class Package(NamedTuple):
    folder: Path
    name: str
    asks: list[str]  # requirements without extras
    extras: dict[str, list[str]]

    @property
    def tested(self) -> bool:
        return any(self.folder.glob("tests/test_*.py"))


def _package(folder: Path) -> Package:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return Package(folder, project["name"], project["dependencies"], project.get("optional-dependencies", {}))


PACKAGES = [
    _package(folder)
    for folder in (ROOT / "core", ROOT / "kernels-shared", *sorted(ROOT.glob("packages/*")))
    if (folder / "pyproject.toml").is_file()
]
EACH = nox.parametrize("package", [nox.param(one, id=one.name) for one in PACKAGES if one.tested])


def _wheels(*wanted: str) -> list[str]:
    """Requirements for our own wheels, by path; ``wanted`` are names with extras, each package once."""
    extras = {name.partition("[")[0]: name for name in wanted}
    return [
        f"{asked} @ {next(WHEELS.glob(name.replace('-', '_') + '-[0-9]*.whl')).as_uri()}"
        for name, asked in extras.items()
    ]


@contextmanager
def _elsewhere(session: nox.Session) -> Iterator[Path]:
    """A folder outside the checkout: no source can be imported, no setting of the workspace applies."""
    with tempfile.TemporaryDirectory() as folder, session.chdir(folder):
        yield Path(folder)


def _pytest(session: nox.Session, *arguments: str | Path) -> None:
    # OpenBLAS waits by spinning, which a shared machine pays for many times over.
    environment = {"OPENBLAS_NUM_THREADS": "1", "VQX_WHEELS": str(WHEELS)}
    session.run(
        "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "-ra", *arguments, env=environment
    )


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every package's wheel once, and look at what is in it."""
    session.install("--group", "wheels")
    rmtree(WHEELS, ignore_errors=True)
    build = ("uv", "build", "--all-packages", "--wheel", "--no-sources", "--out-dir", str(WHEELS))
    session.run(*build, external=True, silent=True)
    session.run("twine", "check", "--strict", *map(str, WHEELS.glob("*.whl")))
    for package in PACKAGES:
        _, _, address = _wheels(package.name)[0].partition(" @ file://")
        with ZipFile(address) as wheel:
            files = wheel.namelist()
            about = message_from_bytes(wheel.read(next(f for f in files if f.endswith("/METADATA"))))
        for needed in ("/licenses/LICENSE", "/py.typed"):
            if not any(file.endswith(needed) for file in files):
                session.error(f"{address} carries no {needed}")
        if about["Name"] != package.name or about["License-Expression"] != "Apache-2.0":
            session.error(f"{address} says {about['Name']}, {about['License-Expression']}")


@nox.session(requires=["wheels"])
@EACH
def tests(session: nox.Session, package: Package) -> None:
    """A package's own tests, with nothing of ours beside it but the core and the kernels."""
    session.install(*_wheels(package.name, *SHARED))
    with _elsewhere(session):
        _pytest(session, package.folder / "tests", *session.posargs)


@nox.session(requires=["wheels"])
@EACH
def lowest(session: nox.Session, package: Package) -> None:
    """The same tests with the lowest version of everything that the package itself asks for."""
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["constraint-dependencies"]
    asks = [*package.asks, *package.extras.get("cpu", []), *package.extras.get("testing", [])]
    names = {Requirement(one).name for one in asks}
    with _elsewhere(session) as folder:
        others = folder / "constraints.txt"
        others.write_text("\n".join(pin for pin in pins if pin.partition("==")[0] not in names))
        ours = _wheels(package.name, *SHARED)
        session.install("--resolution", "lowest-direct", "-c", str(others), *ours, *asks)
        _pytest(session, package.folder / "tests", *session.posargs)


@nox.session(requires=["wheels"])
def integration(session: nox.Session) -> None:
    """What needs more than one package, with the embedded model."""
    session.install(*_wheels(*(one.name for one in PACKAGES), "vqx[cpu,demo,testing]"))
    with _elsewhere(session):
        folder = ROOT / "integration-tests"
        _pytest(session, folder, "--ignore", folder / "test_newcomer.py", *session.posargs)


@nox.session(requires=["wheels"])
def newcomer(session: nox.Session) -> None:
    """A method of forty lines: rendered, built, installed beside the core, found and put through the laws."""
    session.install("pytest>=8.4")
    with _elsewhere(session):
        _pytest(session, ROOT / "integration-tests/test_newcomer.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format."""
    session.install("--group", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(requires=["wheels"])
def types(session: nox.Session) -> None:
    """Types, strictly."""
    session.install("--group", "types", *_wheels(*(one.name for one in PACKAGES), "vqx[cpu,testing]"))
    session.run("mypy", *(str(one.folder / "src") for one in PACKAGES))


@nox.session(requires=["wheels"])
def boundaries(session: nox.Session) -> None:
    """Who may import whom (.importlinter), and that what is imported is asked for (deptry)."""
    session.install("--group", "boundaries", *_wheels(*(one.name for one in PACKAGES), "vqx[cpu,testing]"))
    contracts = Path(session.create_tmp()) / "importlinter.ini"
    plugins = [one.name.replace("-", "_") for one in PACKAGES if one.folder.parent.name == "packages"]
    contracts.write_text((ROOT / ".importlinter").read_text().replace("PLUGINS", "\n    ".join(plugins)))
    session.run("lint-imports", "--config", str(contracts), "--no-cache")
    for package in PACKAGES:
        # An extra may be there for what it brings (a BLAS, a model) and never be imported.
        unused = "|".join(sorted({Requirement(one).name for many in package.extras.values() for one in many}))
        ignore = ["--per-rule-ignores", f"DEP002={unused}"] if unused else []
        with session.chdir(package.folder):
            session.run("deptry", "src", *ignore)


@nox.session(default=False, requires=["wheels"])
def bench(session: nox.Session) -> None:
    """Every package's benchmarks (needs a quiet machine)."""
    session.install(*_wheels(*(one.name for one in PACKAGES), "vqx[cpu,demo]"))
    for script in sorted(ROOT.glob("packages/*/bench/*.py")):
        session.run("python", str(script), *session.posargs)
