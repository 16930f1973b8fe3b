"""CaM for vqx: a row that goes is merged into the rows next to it."""

from vqx_cam.method import CamConfig

__all__ = ["CamConfig"]
