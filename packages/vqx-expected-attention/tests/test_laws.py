"""The laws of every method, at Expected Attention's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "expected-attention"
    settings = ({"recent": 3, "future": 32},)
    streams = ("topics", "duplicates")
