"""``python -m vqx_layerwise``: the same as ``vqx layerwise``."""

from vqx_layerwise.command import command

command()
