"""The laws of every method."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "METHOD"
    settings = ({}, {"half_life": 2})
