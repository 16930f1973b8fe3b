"""The laws of every method, at CaM's settings (of kept rows, keys alone are the offered ones)."""

from vqx.testing import MethodLaws


class TestLaws(MethodLaws):
    method = "cam"
    settings = ({}, {"merge_budget": 3, "n_sink": 0, "seed": 5})
