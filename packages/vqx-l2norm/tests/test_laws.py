"""The laws of every method, at the L2 norm's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "l2norm"
    settings = ({"skip": 0}, {"skip": 0, "n_sink": 0, "recent": 5})


class TestKnorm(MethodLaws):
    method = "knorm"
    settings = ({"skip": 0},)
