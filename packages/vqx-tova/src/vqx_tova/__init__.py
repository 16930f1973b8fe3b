"""TOVA for vqx: keep the rows that the latest query attends to."""

from vqx_tova.method import TovaConfig
from vqx_tova.state import (
    TovaState,
    full_tova_fp16_bytes,
    init_tova_state,
    tova_fp16_bytes,
    tova_get_kv,
    tova_update,
    tova_update_batched,
)

__all__ = [
    "TovaConfig",
    "TovaState",
    "full_tova_fp16_bytes",
    "init_tova_state",
    "tova_fp16_bytes",
    "tova_get_kv",
    "tova_update",
    "tova_update_batched",
]
