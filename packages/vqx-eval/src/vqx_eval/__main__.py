"""``python -m vqx_eval``: the command from a checkout, where no entry point is installed."""

from vqx_eval.command import command

command(prog_name="vqx eval")
