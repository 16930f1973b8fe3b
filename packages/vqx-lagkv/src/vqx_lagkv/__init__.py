"""LagKV for vqx: keep the rows that spread most against the rows behind them."""

from vqx_lagkv.method import LagKVConfig

__all__ = ["LagKVConfig"]
