"""The laws of every method, at R-KV's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "r-kv"
    streams = ("topics", "duplicates")
