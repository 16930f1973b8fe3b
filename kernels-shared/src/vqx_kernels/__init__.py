"""Kernels of vqx: on which target they may run here."""

from vqx_kernels.targets import Target, choose, targets

__all__ = ["Target", "choose", "targets"]
