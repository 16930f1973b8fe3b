"""Ada-KV for vqx: the heads of a layer share one budget, around any method."""

from vqx_ada.method import AdaConfig

__all__ = ["AdaConfig"]
