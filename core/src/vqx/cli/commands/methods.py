"""``vqx methods``: what is installed, and what is not."""

import json
from importlib.metadata import PackageNotFoundError, version

import click

from vqx.cli.asking import json_flag
from vqx.cli.showing import table
from vqx.kernels import offered, target
from vqx.known import known
from vqx.registry import PluginError, registry

EPILOG = """\b
Examples:
  vqx methods
  vqx methods --available
  vqx methods --json
"""


@click.command(epilog=EPILOG)
@click.option("--available", is_flag=True, help="List the packages that are not installed.")
@json_flag
def command(available: bool, as_json: bool) -> None:
    """List the eviction methods installed here, or the packages that bring more."""
    rows = _available() if available else _installed()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif available and not rows:
        click.echo("Every package of the project is installed.")
    elif not rows:
        click.echo("No method is installed. Try: pip install vqx-h2o (more: vqx methods --available)")
    else:
        columns = ("brings", "summary", "install") if available else ("method", "version", "keeps")
        table([{name: row[name] for name in columns} for row in rows], head=False)
        if not available:
            click.echo(f"\nKernels: {_kernels()}")
            click.echo("Packages and papers: vqx methods --json; what is not installed: --available")


def _kernels() -> str:
    """Where the arithmetic of scores runs."""
    kernels = offered()
    if kernels is None:
        return "none installed, MLX operations do it (pip install vqx-kernels)"
    where = target()
    used = "not used on this device, MLX operations do it" if where == "reference" else f"run on {where}"
    return f"{kernels.__name__}, {used}"


def _installed() -> list[dict[str, str]]:
    rows = []
    for found in registry.installed():
        row = {"method": found.name, "package": found.distribution, "version": found.version}
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
