"""CaM for vqx: a row that goes is merged into the next rows that stay."""

from vqx_cam.method import CamConfig

__all__ = ["CamConfig"]
