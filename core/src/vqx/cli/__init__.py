"""The command line ``vqx``: one file a command in ``vqx/cli/commands``, and what packages add."""

import os
import sys

import click

from vqx.cli.group import Commands

EPILOG = """\b
Examples:
  vqx methods --available
  vqx compare "Why is the sky blue?" --method h2o --method tova --budget 64
  eval "$(_VQX_COMPLETE=bash_source vqx)"  # shell completion, of zsh and fish too
"""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(package_name="vqx")
@click.option(
    "--blas",
    "library",
    metavar="auto|off|PATH",
    help="Linux CPUs: which BLAS multiplies matrices (also the environment's VQX_BLAS).",
)
def main(library: str | None) -> None:
    """Bound the memory of a language model's key-value cache on MLX."""
    if library is not None and library != os.environ.get("VQX_BLAS", "auto"):
        # the choice is made before mlx loads, so start over with it
        os.environ["VQX_BLAS"] = library
        os.execv(sys.executable, [sys.executable, "-m", "vqx", *sys.argv[1:]])
