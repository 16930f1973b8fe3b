"""R-KV for vqx: keep the rows that are attended to and say something new."""

from vqx_r_kv.method import RKVConfig

__all__ = ["RKVConfig"]
