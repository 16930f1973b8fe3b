"""Fusion for vqx: rows that are attended to, and rows that are unlike the rest."""

from vqx_fusion.method import FusionConfig

__all__ = ["FusionConfig"]
