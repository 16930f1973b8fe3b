"""The laws of every method, with nothing to share out: budgets of one layer are its own."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "layerwise"
    settings = ({"floor": 1.0},)
    streams = ("topics",)
