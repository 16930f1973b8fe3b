"""The laws of every method, with and without protected spans."""

from vqx.testing import MethodLaws

SPANS = ((6, 9), (20, 23))


class TestLaws(MethodLaws):
    method = "protect"
    settings = ({}, {"spans": SPANS}, {"spans": SPANS, "keep": "share"})
