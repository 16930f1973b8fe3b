"""Layerwise for vqx: rows shared out among the layers by what each loses without them."""

from vqx_layerwise.method import LayerwiseConfig

__all__ = ["LayerwiseConfig"]
