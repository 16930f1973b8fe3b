"""SnapKV for vqx: keep the rows that the end of the prompt attends to."""

from vqx_snapkv.method import SnapKVConfig

__all__ = ["SnapKVConfig"]
