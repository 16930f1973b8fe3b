"""``python -m vqx_qfilters``: the same as ``vqx qfilters``."""

from vqx_qfilters.command import command

command()
