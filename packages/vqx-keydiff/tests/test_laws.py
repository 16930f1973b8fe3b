"""The laws of every method, at KeyDiff's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "keydiff"
    settings = ({}, {"n_sink": 0, "recent": 5})
