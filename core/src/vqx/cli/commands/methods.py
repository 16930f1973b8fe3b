"""``vqx methods``: what is installed, and what is not."""

import json
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import click

from vqx.cli.asking import json_flag
from vqx.cli.showing import table
from vqx.kernels import described
from vqx.known import known
from vqx.registry import PluginError, registry

EPILOG = """\b
Examples:
  vqx methods
  vqx methods --available
  vqx methods --kernels
  vqx methods --json
"""


@click.command(epilog=EPILOG)
@click.option("--available", is_flag=True, help="List the packages that are not installed.")
@click.option("--kernels", is_flag=True, help="Say which methods have kernels, where they run, and why.")
@json_flag
def command(available: bool, kernels: bool, as_json: bool) -> None:
    """List the eviction methods installed here, or the packages that bring more."""
    rows = _available() if available else _installed()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif kernels and not available:
        _kernels(rows)
    elif available and not rows:
        click.echo("Every package of the project is installed.")
    elif not rows:
        click.echo("No method is installed. Try: pip install vqx-h2o (more: vqx methods --available)")
    else:
        columns = ("brings", "summary", "install") if available else ("method", "version", "keeps")
        table([{name: row[name] for name in columns} for row in rows], head=False)
        if not available:
            click.echo(f"\nKernels: {described()[0]}")
            click.echo("Packages and papers: vqx methods --json; what is not installed: --available")


def _kernels(rows: list[dict[str, str]]) -> None:
    """Which methods have a kernel of their own, and where kernels run."""
    table([{name: row[name] for name in ("method", "kernel", "keeps")} for row in rows], head=False)
    click.echo("\nShared ones serve every method that reads attention, and the choice of rows.")
    for line in described():
        click.echo(f"  {line}")


def _has_kernel(package: str) -> bool:
    name = package.replace("-", "_")
    return find_spec(name) is not None and find_spec(f"{name}.kernel") is not None


def _installed() -> list[dict[str, str]]:
    rows = []
    for found in registry.installed():
        row = {"method": found.name, "package": found.distribution, "version": found.version}
        row["kernel"] = "its own" if _has_kernel(found.distribution) else "shared"
        try:
            spec = registry.load(found.name)
            rows.append({**row, "keeps": spec.summary, "paper": spec.paper})
        except PluginError as error:
            rows.append({**row, "keeps": f"cannot be used: {error}", "paper": ""})
    return rows


def _available() -> list[dict[str, str]]:
    return [
        {
            "brings": ", ".join([*one.methods, *(f"vqx {name}" for name in one.commands)]),
            "summary": one.summary,
            "install": f"pip install {one.package}",
        }
        for one in known()
        if not _is_here(one.package)
    ]


def _is_here(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False
