"""MorphKV for vqx: keep the rows that the last few queries attend to."""

from vqx_morphkv.method import MorphKVConfig
from vqx_morphkv.state import (
    MorphKVState,
    full_morphkv_fp16_bytes,
    init_morphkv_state,
    morphkv_fp16_bytes,
    morphkv_get_kv,
    morphkv_update,
    morphkv_update_batched,
)

__all__ = [
    "MorphKVConfig",
    "MorphKVState",
    "full_morphkv_fp16_bytes",
    "init_morphkv_state",
    "morphkv_fp16_bytes",
    "morphkv_get_kv",
    "morphkv_update",
    "morphkv_update_batched",
]
