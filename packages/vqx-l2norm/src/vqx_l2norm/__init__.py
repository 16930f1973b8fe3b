"""L2 norm for vqx: keep the rows whose keys are shortest."""

from vqx_l2norm.method import L2NormConfig

__all__ = ["L2NormConfig"]
