"""Every check of the workspace: ``uv run nox`` runs them all, ``uv run nox -l`` lists them.

Packages are found by globbing, built once, and installed by path: a wheel that an index finds may be stale.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree, which
from typing import NamedTuple
from zipfile import ZipFile

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"  # a session for a Python that is not here says so

ROOT = Path(__file__).parent
WHEELS = ROOT / "dist"
PYTHONS = ["3.11", "3.12", "3.13"]
if which("pyenv"):  # it shows only the Pythons that it is told of
    have = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True).stdout.split()
    os.environ["PYENV_VERSION"] = ":".join(one for one in have if one.startswith(tuple(PYTHONS)))


class Package(NamedTuple):
    folder: Path
    name: str
    asks: list[str]  # requirements without extras
    extras: dict[str, list[str]]

    @property
    def tested(self) -> list[str]:
        """The extras that its tests want: of the core's, which choose a device or a model, two."""
        return [name for name in self.extras if self.name != "vqx" or name in ("cpu", "testing")]

    @property
    def asked_by_tests(self) -> list[str]:
        return [*self.asks, *(ask for name in self.tested for ask in self.extras[name])]


def _package(folder: Path) -> Package:
    project = nox.project.load_toml(folder / "pyproject.toml")["project"]
    return Package(folder, project["name"], project["dependencies"], project.get("optional-dependencies", {}))


PLUGINS = [_package(file.parent) for file in sorted(ROOT.glob("packages/*/pyproject.toml"))]
PACKAGES = [_package(ROOT / "core"), _package(ROOT / "kernels-shared"), *PLUGINS]
EACH = nox.parametrize(
    "package", [nox.param(one, id=one.name) for one in PACKAGES if any(one.folder.glob("tests/test_*.py"))]
)


def _wheels(packages: list[Package], extras: str = "cpu,testing", *, alone: bool = False) -> list[str]:
    """These wheels by path, with what their tests want unless ``alone``, and the core's and the kernels'."""

    def wheel(one: Package, extras: str) -> str:
        path = next(WHEELS.glob(f"{one.name.replace('-', '_')}-[0-9]*.whl"))
        return f"{one.name}{f'[{extras}]' if extras else ''} @ {path.as_uri()}"

    core, kernels = PACKAGES[:2]
    plugins = [one for one in packages if one not in (core, kernels)]
    own = [wheel(one, "" if alone else ",".join(one.tested)) for one in plugins]
    return [wheel(core, extras), wheel(kernels, "" if alone else "testing"), *own]


@contextmanager
def _elsewhere(session: nox.Session) -> Iterator[None]:
    """A folder outside the checkout: no source can be imported, no setting of the workspace applies."""
    with tempfile.TemporaryDirectory() as folder, session.chdir(folder):
        yield


def _pytest(session: nox.Session, *arguments: str | Path) -> None:
    session.env["OPENBLAS_NUM_THREADS"] = "1"  # it waits by spinning, dear on a shared machine
    session.run("pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "-ra", *arguments)


PARALLEL = ("-n", "auto", "--maxprocesses", "4", "--max-worker-restart", "0", "--dist", "loadfile")
"""A process for each core, with the group ``parallel``; four hold four models. One that crashes ends all."""


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every package once, its wheel out of its sdist, and look at what is in them."""
    session.install("--group", "wheels")
    rmtree(WHEELS, ignore_errors=True)
    session.run("uv", "build", "--all-packages", "--no-sources", "-o", "dist", external=True)
    built, sources = sorted(WHEELS.glob("*.whl")), sorted(WHEELS.glob("*.tar.gz"))
    if not len(built) == len(sources) == len(PACKAGES):
        session.error(f"{len(PACKAGES)} packages, {len(built)} wheels and {len(sources)} sdists")
    session.run("twine", "check", "--strict", *map(str, [*built, *sources]))
    # W002: headers that an emulator finds by several names say the same
    session.run("check-wheel-contents", "--ignore", "W002", *map(str, built))
    for wheel, needed in ((wheel, needed) for wheel in built for needed in ("/LICENSE", "/py.typed")):
        if not any(name.endswith(needed) for name in ZipFile(wheel).namelist()):
            session.error(f"{wheel.name} carries no {needed[1:]}")


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format."""
    session.install("--group", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(requires=["wheels"])
def types(session: nox.Session) -> None:
    """Types, strictly."""
    session.install("--group", "types", *_wheels(PLUGINS))
    session.run("mypy", *(str(one.folder / "src") for one in PACKAGES))


@nox.session(requires=["wheels"])
def boundaries(session: nox.Session) -> None:
    """Who may import whom (.importlinter), and that what is imported is asked for (deptry)."""
    session.install("--group", "boundaries", *_wheels(PLUGINS))
    contracts = Path(session.create_tmp(), "importlinter.ini")
    plugins = "\n    ".join(one.name.replace("-", "_") for one in PLUGINS)
    contracts.write_text((ROOT / ".importlinter").read_text().replace("PLUGINS", plugins))
    session.run("lint-imports", "--no-logo", "--no-cache", str(contracts))
    for package in PACKAGES:
        # An extra may be there for what it brings (a BLAS, a model) and never be imported.
        brought = {Requirement(one).name for many in package.extras.values() for one in many}
        with session.chdir(package.folder):
            session.run("deptry", "src", "--per-rule-ignores", "DEP002=" + "|".join(sorted({"", *brought})))


@nox.session
def newcomer(session: nox.Session) -> None:
    """A method of forty lines: rendered, built, installed beside the core, found, and tried."""
    session.install("--group", "newcomer")
    folder = ROOT / "integration-tests"  # without the conftest, which wants vqx
    with _elsewhere(session):
        _pytest(session, "--noconftest", "-o", f"pythonpath={folder}", folder / "test_newcomer.py")


@nox.session(requires=["wheels"])
@EACH
def tests(session: nox.Session, package: Package) -> None:
    """A package's own tests, with nothing of ours beside it but the core and the kernels."""
    many = PARALLEL if package.name == "vqx" else ()
    session.install(*_wheels([package]), *(["--group", "parallel"] if many else []))
    with _elsewhere(session):
        _pytest(session, *many, package.folder / "tests", *session.posargs)


@nox.session(requires=["wheels"])
def emulated(session: nox.Session) -> None:
    """Kernels on emulated devices, with ThreadSanitizer and planted faults, and by NVIDIA's own compiler."""
    session.install(*_wheels([]), "--group", "nvrtc")
    with _elsewhere(session):
        _pytest(session, ROOT / "kernels-shared" / "emulated", *session.posargs)


@nox.session(requires=["wheels"])
def lowest(session: nox.Session) -> None:
    """Each of the packages' tests once, with the lowest version of everything that a package asks for.

    Siblings ask for a library with the same bound (integration-tests/test_repository.py), so one will do.
    """
    asks = sorted({ask for one in PACKAGES for ask in one.asked_by_tests})
    low = {Requirement(one).name for one in asks}
    pins = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["uv"]["constraint-dependencies"]
    session.install("--group", "parallel")
    with _elsewhere(session):
        Path("others.txt").write_text("\n".join(pin for pin in pins if Requirement(pin).name not in low))
        session.install("--resolution", "lowest-direct", "-c", "others.txt", *_wheels(PLUGINS), *asks)
        folders = [one.folder / "tests" for one in PACKAGES]
        _pytest(session, *PARALLEL, "--each-once", *folders, *session.posargs)


@nox.session(requires=["wheels"])
def integration(session: nox.Session) -> None:
    """What needs more than one package, with the embedded model."""
    groups = [word for one in ("release", "model", "parallel") for word in ("--group", one)]
    session.install(*groups, *_wheels(PLUGINS))
    folder = ROOT / "integration-tests"
    with _elsewhere(session):
        elsewhere = [f"--ignore={folder / name}" for name in ("test_newcomer.py", "test_first_steps.py")]
        _pytest(session, *PARALLEL, "-m", "not alone", folder, *elsewhere, *session.posargs)
        _pytest(session, "-m", "alone", folder, *elsewhere)


@nox.session(default=False, requires=["wheels"])
def soak(session: nox.Session) -> None:
    """200 requests of mixed lengths to a server: the same answers as one by one, and flat memory."""
    session.install("--group", "model", *_wheels(PLUGINS))
    with _elsewhere(session):
        served = ROOT / "integration-tests" / "test_serving.py"
        for method in ("h2o:interval=3", "h2o:positions=compact", "squeezeattention(h2o)", "ada(h2o)"):
            asked = ("--served", method, "--requests", "200")
            _pytest(session, served, "-k", "at_once", *asked, *session.posargs)


@nox.session(default=False, python=PYTHONS, requires=["wheels"])
def pythons(session: nox.Session) -> None:
    """Each of the packages' tests once, with every Python that is here."""
    session.install("--group", "parallel", *_wheels(PLUGINS))
    with _elsewhere(session):
        folders = [one.folder / "tests" for one in PACKAGES]
        _pytest(session, *PARALLEL, "--each-once", *folders, *session.posargs)


@nox.session(default=False, requires=["wheels"])
def start(session: nox.Session) -> None:
    """Shell blocks of every page, README's and the start page's as printed, where nothing is installed."""
    session.install("pytest>=8.4")
    folder = ROOT / "integration-tests"
    alone = ("--noconftest", "-o", f"pythonpath={folder}")
    _pytest(session, *alone, folder / "test_first_steps.py", *session.posargs)


@nox.session(default=False)
def changelog(session: nox.Session) -> None:
    """Write the fragments of these packages into their changelogs: nox -s changelog -- vqx."""
    session.install("--group", "release")
    for one in (one for one in PACKAGES if one.name in session.posargs):
        version = nox.project.load_toml(one.folder / "pyproject.toml")["project"]["version"]
        where = ("--config", str(ROOT / "pyproject.toml"), "--dir", str(one.folder))
        session.run("towncrier", "build", "--yes", *where, "--name", one.name, "--version", version)


@nox.session(default=False, requires=["wheels"])
def release(session: nox.Session) -> None:
    """Whether these tags may be set on this commit: nox -s release -- vqx-v0.1.0 (CONTRIBUTING.md).

    Refused: tag, version, changelog or fragments that disagree. Then plugins of old releases run on this
    core, and each wheel is installed alone.
    """
    folder = ROOT / "integration-tests"
    session.install("--group", "release", *_wheels(PACKAGES))
    session.run("cffconvert", "--validate", "-i", str(ROOT / "CITATION.cff"))
    session.run("python", str(folder / "releases" / "agreement.py"), *session.posargs)
    with _elsewhere(session):
        _pytest(session, folder / "test_release.py")
        for one in PACKAGES:
            session.run("uv", "venv", "--quiet", "--clear", "alone", external=True)
            python = str(Path("alone", "Scripts" if os.name == "nt" else "bin", "python"))
            install = ["uv", "pip", "install", "--quiet", "--python", python]
            session.run(*install, *_wheels([one], "cpu", alone=True), external=True)
            session.run(python, "-m", "vqx", "methods", external=True)


@nox.session(requires=["wheels"])
def docs(session: nox.Session) -> None:
    """The site, without a warning: pages, links within it, the reference of every package (build/html)."""
    _sphinx(session, "html", "-E", "-W", "--keep-going")


@nox.session(default=False, requires=["wheels"])
def links(session: nox.Session) -> None:
    """Links from the site to elsewhere (they want a network)."""
    _sphinx(session, "linkcheck")


def _sphinx(session: nox.Session, builder: str, *options: str) -> None:
    session.install("--group", "docs", "--group", "model", *_wheels(PLUGINS))
    trees = str(Path(session.create_tmp(), "trees"))
    session.run(
        "sphinx-build", "-q", "-b", builder, *options, "-c", "docs", "-d", trees, ".", f"build/{builder}"
    )


@nox.session(default=which("chromium") is not None, requires=["wheels"])
def browser(session: nox.Session) -> None:
    """Pages in a real browser, where a chromium is installed (Debian: ``apt-get install chromium``)."""
    session.install("--group", "model", *_wheels(PLUGINS), "playwright>=1.58")
    folders = sorted(ROOT.glob("packages/*/browser"))
    with _elsewhere(session):
        _pytest(session, "--noconftest", *folders, *session.posargs)


@nox.session(default=False, requires=["wheels"])
def bench(session: nox.Session) -> None:
    """Every package's benchmarks (they want a quiet machine)."""
    session.install("--group", "model", *_wheels(PLUGINS), "matplotlib>=3.10.8")
    for script in sorted(ROOT.glob("packages/*/bench/*.py")):
        session.run("python", str(script), *session.posargs)


@nox.session(default=False, requires=["wheels"])
def studies(session: nox.Session) -> None:
    """Measurements on the embedded model that docs/evidence.md quotes (they want a quiet machine)."""
    session.install("--group", "model", *_wheels(PLUGINS))
    for script in sorted(ROOT.glob("integration-tests/studies/*.py")):
        session.run("python", str(script), *session.posargs)


@nox.session(default=False, requires=["wheels"])
def peers(session: nox.Session) -> None:
    """Rows kept by the papers' code and by kvpress on recorded tensors (docs/peers.md: checkouts wanted)."""
    folder, data = ROOT / "integration-tests" / "peers", Path(session.create_tmp())
    session.install("--group", "model", *_wheels(PLUGINS))
    session.run("python", str(folder / "record.py"), str(data))
    python = str(data / "torch" / "bin" / "python")  # kvpress wants another transformers than mlx-lm
    session.run(sys.executable, "-m", "venv", str(data / "torch"), external=True)
    session.run(
        python, "-m", "pip", "install", "-q", "torch>=2.10", "kvpress==0.5.5", "einops", external=True
    )
    session.run(python, str(folder / "compare.py"), str(data), *session.posargs, external=True)
