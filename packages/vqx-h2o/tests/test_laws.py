"""The laws of every method, at H2O's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "h2o"
    settings = ({"normalise": None, "decay": 0.9}, {"recent": 0, "grace": 6})
