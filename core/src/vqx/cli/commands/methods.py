"""``vqx methods``: what is installed."""

import json

import click

from vqx.cli.asking import json_flag
from vqx.registry import PluginError, registry


@click.command()
@json_flag
def command(as_json: bool) -> None:
    """List the eviction methods installed here."""
    rows: list[dict[str, str]] = []
    for found in registry.installed():
        row = {"method": found.name, "package": found.distribution, "version": found.version}
        try:
            spec = registry.load(found.name)
            rows.append({**row, "keeps": spec.summary, "paper": spec.paper})
        except PluginError as error:
            rows.append({**row, "keeps": f"cannot be used: {error}", "paper": ""})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("No method is installed. Try: pip install vqx-h2o")
        return
    wide = max(len(row["method"]) for row in rows)
    for row in rows:
        click.echo(f"{row['method']:{wide}}  {row['keeps']}")
    click.echo("\nPackages, versions and papers: vqx methods --json")
