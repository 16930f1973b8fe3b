"""Expected Attention for vqx: keep the rows that queries to come are expected to attend to."""

from vqx_expected_attention.method import ExpectedAttentionConfig

__all__ = ["ExpectedAttentionConfig"]
