"""The laws of every method, at PyramidKV's settings (one layer has the mean budget)."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "pyramidkv"
    settings = ({"window": 4}, {"window": 3, "kernel": 3, "pool": "max", "group": "max", "n_sink": 0})
    pooled_settings = ({"window": 4, "heads": "layer"},)
