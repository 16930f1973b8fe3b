"""CriticalKV for vqx: attention weighed by what a row's value does to the output, around any method."""

from vqx_critical.method import CriticalConfig

__all__ = ["CriticalConfig"]
