"""The laws of every method, at StreamingLLM's settings."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "streaming-llm"
    settings = ({}, {"n_sink": 0}, {"n_sink": 15})
