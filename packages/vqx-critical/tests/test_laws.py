"""The laws of every method; which columns of the projection are a head's depends on the heads before it."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "critical"
    settings = ()
    pooled_settings = ({"window": 4},)
