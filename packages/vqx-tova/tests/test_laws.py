"""The laws of every method, at TOVA's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "tova"
    settings = ({"heads": "each"}, {"heads": "each", "keep_newest": False, "n_sink": 0})
    pooled_settings = ({}, {"keep_newest": False})
