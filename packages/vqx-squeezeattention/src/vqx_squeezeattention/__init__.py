"""SqueezeAttention for vqx: budgets of the layers by how much their attention changes, around any method."""

from vqx_squeezeattention.method import SqueezeConfig

__all__ = ["SqueezeConfig"]
