"""KeyDiff for vqx: keep the rows whose keys point away from the mean key."""

from vqx_keydiff.method import KeyDiffConfig

__all__ = ["KeyDiffConfig"]
