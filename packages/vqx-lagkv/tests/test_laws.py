"""The laws of every method, at LagKV's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "lagkv"
    settings = ({}, {"n_sink": 0, "lag": 5})
