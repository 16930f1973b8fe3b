"""The laws of every method, at ChunkKV's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "chunkkv"
    settings = ({"window": 4, "chunk": 3}, {"window": 3, "n_sink": 0})
    pooled_settings = ({"window": 4, "heads": "layer"},)
