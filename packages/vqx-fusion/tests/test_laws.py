"""The laws of every method, at Fusion's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "fusion"
    settings = ({"local": 0.5, "recent": 3},)


class TestLawsWithExpectedAttention(MethodLaws):
    method = "fusion"
    settings = ({"beyond": "expected"},)
    streams = ("topics", "dominant sink")
