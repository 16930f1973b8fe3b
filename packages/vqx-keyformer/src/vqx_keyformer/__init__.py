"""Keyformer for vqx: accumulated attention with frozen Gumbel noise and a temperature."""

from vqx_keyformer.method import KeyformerConfig
from vqx_keyformer.state import (
    KeyformerState,
    full_keyformer_fp16_bytes,
    init_keyformer_state,
    keyformer_fp16_bytes,
    keyformer_get_kv,
    keyformer_update,
    keyformer_update_batched,
)

__all__ = [
    "KeyformerConfig",
    "KeyformerState",
    "full_keyformer_fp16_bytes",
    "init_keyformer_state",
    "keyformer_fp16_bytes",
    "keyformer_get_kv",
    "keyformer_update",
    "keyformer_update_batched",
]
