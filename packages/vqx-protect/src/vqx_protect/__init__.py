"""Protected spans for vqx: spans of the text that are never evicted, around any method."""

from vqx_protect.method import ProtectConfig
from vqx_protect.spans import spans_of_roles, spans_of_text

__all__ = ["ProtectConfig", "spans_of_roles", "spans_of_text"]
