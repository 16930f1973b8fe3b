"""The laws of every method, at StreamingLLM's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "streaming-llm"
    settings = ({}, {"n_sink": 0}, {"n_sink": 15})


class TestSink(MethodLaws):
    method = "sink"


class TestSlidingWindow(MethodLaws):
    method = "sliding-window"
    settings = ({}, {"n_sink": 4})
