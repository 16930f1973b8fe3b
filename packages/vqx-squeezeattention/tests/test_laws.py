"""The laws of every method, for one layer, which has nobody to share with."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "squeezeattention"
    settings = ({"percent": 0.3},)
