"""PyramidKV for vqx: SnapKV's rows, more of them in the first layers."""

from vqx_pyramidkv.method import PyramidKVConfig, layer_budgets

__all__ = ["PyramidKVConfig", "layer_budgets"]
