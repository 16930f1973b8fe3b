"""The laws of every method, for heads that share a budget."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "ada"
    settings = ()
    pooled_settings = (
        {"window": 4},
        {"window": 4, "floor": 0.0},
        {"window": 1, "kernel": 1, "floor": 0.7, "n_sink": 0},
    )
