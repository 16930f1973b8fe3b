"""``python -m vqx``: the command line; alone it also says where kernels run."""

import sys

import click

from vqx.cli import main
from vqx.kernels import described

if __name__ == "__main__":
    if len(sys.argv) == 1:
        try:
            click.echo(f"Kernels {described()[0]}\n")
        except ValueError as error:
            sys.exit(f"Error: {error}")
    main()
