"""The laws of every method, at Keyformer's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "keyformer"
    settings = (
        {},
        {"tau": 6.0, "seed": 3, "n_sink": 0},
        # a ramp over generated tokens does tell a prompt from single tokens: constant here
        {"noise": "logit", "tau": 1.5},
        {"noise": "logit", "tau": 1.5, "redraw": True},
    )
