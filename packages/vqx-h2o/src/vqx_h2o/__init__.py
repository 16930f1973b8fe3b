"""H2O for vqx: keep the rows that gathered most attention, and the recent ones."""

from vqx_h2o.method import H2OConfig
from vqx_h2o.state import (
    H2OState,
    full_h2o_fp16_bytes,
    h2o_fp16_bytes,
    h2o_get_kv,
    h2o_update,
    h2o_update_batched,
    init_h2o_state,
)

__all__ = [
    "H2OConfig",
    "H2OState",
    "full_h2o_fp16_bytes",
    "h2o_fp16_bytes",
    "h2o_get_kv",
    "h2o_update",
    "h2o_update_batched",
    "init_h2o_state",
]
